package safetensors

import (
	"encoding/binary"
	"io"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

// firstReadBytes is read at once, on the guess that it holds the whole header: that saves a round trip to a remote file.
const firstReadBytes = 64 << 10

// ReadHeader reads the header of a file of size bytes with one or two ReadAt calls; the tensors' bytes are not read. A
// negative size means unknown: then what follows the header is not checked, see Header.FileSize. The length is compared
// with MaxHeaderBytes and the size before memory for it is allocated.
//
// Errors: those of r; those of ParseHeader; LFSPointerError; ErrOtherFormat for a file that is recognised as another format.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	first, err := readFirst(r, size)
	if err != nil {
		return nil, err
	}
	if err := checkPointer(first); err != nil {
		return nil, err
	}
	if err := checkKind(first); err != nil {
		return nil, err
	}
	if len(first) < lengthBytes {
		return nil, errors.Wrapf(ErrTruncated, "the file has %d bytes, the length of the header needs %d", len(first), lengthBytes)
	}
	n, err := headerLength(first, size)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	if size >= 0 {
		text.Grow(int(n)) // an unknown size could be a lie about n: then grow with what arrives
	}
	text.Write(first[lengthBytes:min(lengthBytes+n, int64(len(first)))])
	rest := n - int64(text.Len())
	if rest > 0 && int64(len(first)) < firstReadBytes {
		return nil, errors.Wrapf(ErrTruncated, "header of %d bytes, the file has %d bytes", n, len(first))
	}
	if rest > 0 {
		m, err := io.CopyN(&text, io.NewSectionReader(r, int64(len(first)), rest), rest)
		if err == io.EOF {
			return nil, errors.Wrapf(ErrTruncated, "header of %d bytes, the file has %d bytes", n, int64(len(first))+m)
		}
		if err != nil {
			return nil, errors.Wrap(err, "read header")
		}
	}
	return parseHeader(text.String(), size)
}

// readFirst reads the beginning of the file.
func readFirst(r io.ReaderAt, size int64) ([]byte, error) {
	want := int64(firstReadBytes)
	if size >= 0 {
		want = min(want, size)
	}
	first := make([]byte, want)
	n, err := r.ReadAt(first, 0)
	if int64(n) == want {
		return first, nil
	}
	if err != io.EOF {
		return nil, errors.Wrap(err, "read header")
	}
	if size >= 0 {
		return nil, errors.Wrapf(ErrTruncated, "the file has %d bytes, not %d", n, size)
	}
	return first[:n], nil
}

func headerLength(first []byte, size int64) (int64, error) {
	n := binary.LittleEndian.Uint64(first)
	switch {
	case n > MaxHeaderBytes:
		return 0, errors.Wrapf(ErrHeaderTooLarge, "%d bytes, at most %d", n, MaxHeaderBytes)
	case n < 2:
		return 0, errors.Wrapf(ErrHeader, "length %d, the shortest header is {}", n)
	case size >= 0 && int64(n) > size-lengthBytes:
		return 0, errors.Wrapf(ErrTruncated, "header of %d bytes, the file has %d bytes", n, size)
	}
	return int64(n), nil
}

// The texts of https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
const (
	pointerStart    = "version https://git-lfs.github.com/spec/"
	maxPointerBytes = 1024
)

// checkPointer recognises a pointer of git LFS.
func checkPointer(first []byte) error {
	if len(first) > maxPointerBytes || !strings.HasPrefix(string(first), pointerStart) {
		return nil
	}
	e := &LFSPointerError{Size: -1}
	for line := range strings.Lines(string(first)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "oid":
			e.SHA256, _ = strings.CutPrefix(value, "sha256:")
		case "size":
			if n, err := strconv.ParseInt(value, 10, 64); err == nil && n >= 0 {
				e.Size = n
			}
		}
	}
	return e
}
