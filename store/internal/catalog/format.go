package catalog

import (
	"encoding/binary"

	"github.com/pkg/errors"
)

const formatMeta = "format"

// checkFormat judges a stored format value.
func checkFormat(value []byte) error {
	if len(value) != 4 {
		return errors.Wrapf(ErrCorrupt, "format value has %d bytes, want 4", len(value))
	}
	v := binary.LittleEndian.Uint32(value)
	switch {
	case v == 0:
		return errors.Wrap(ErrCorrupt, "format version 0")
	case v > FormatVersion:
		return errors.Wrapf(ErrNewerFormat, "directory has format %d, newest known %d", v, FormatVersion)
	}
	return nil
}

func formatValue(version uint32) []byte { return binary.LittleEndian.AppendUint32(nil, version) }
