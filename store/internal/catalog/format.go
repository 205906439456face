package catalog

import (
	"encoding/binary"

	"github.com/pkg/errors"
)

const formatMeta = "format"

// markedFormat is the first format whose directories have a mark, see mark.go.
const markedFormat = 2

// checkFormat judges a stored format value.
func checkFormat(value []byte) (uint32, error) {
	if len(value) != 4 {
		return 0, errors.Wrapf(ErrCorrupt, "format value has %d bytes, want 4", len(value))
	}
	v := binary.LittleEndian.Uint32(value)
	switch {
	case v == 0:
		return 0, errors.Wrap(ErrCorrupt, "format version 0")
	case v > FormatVersion:
		return 0, errors.Wrapf(ErrNewerFormat, "directory has format %d, newest known %d", v, FormatVersion)
	}
	return v, nil
}

func formatValue(version uint32) []byte { return binary.LittleEndian.AppendUint32(nil, version) }
