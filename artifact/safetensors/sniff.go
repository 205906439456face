package safetensors

import (
	"bytes"

	"github.com/pkg/errors"
)

// Kind is what the first bytes of a file say that it is.
type Kind string

// The kinds that Sniff knows, as an error message names them.
const (
	KindUnknown     Kind = ""
	KindSafetensors Kind = "a safetensors file"
	KindZip         Kind = "a zip archive (torch.save?)"
	KindPickle      Kind = "a pickle (torch.save before 1.6?)"
	KindGGUF        Kind = "a GGUF file"
	KindHDF5        Kind = "an HDF5 file"
	KindTar         Kind = "a tar archive"
	KindGzip        Kind = "a gzip file"
	KindNumPy       Kind = "a NumPy array"
	KindHTML        Kind = "an HTML page"
)

// SniffBytes is how much of a file Sniff looks at. Fewer bytes are enough for a shorter file.
const SniffBytes = 512

// magics are the beginnings of other formats, and where they stand in the file.
var magics = []struct {
	off   int
	bytes string
	kind  Kind
}{
	{0, "PK\x03\x04", KindZip}, {0, "GGUF", KindGGUF}, {0, "\x89HDF\r\n\x1a\n", KindHDF5}, {0, "\x1f\x8b", KindGzip},
	{0, "\x93NUMPY", KindNumPy}, {257, "ustar", KindTar}, {0, "<!DOCTYPE", KindHTML}, {0, "<!doctype", KindHTML}, {0, "<html", KindHTML},
	{0, "\x80\x02", KindPickle}, {0, "\x80\x03", KindPickle}, {0, "\x80\x04", KindPickle}, {0, "\x80\x05", KindPickle},
}

// Sniff tells a file's kind from its first bytes. The length of a safetensors header could by chance begin as another
// format does, so the "{" after it decides.
func Sniff(first []byte) Kind {
	if len(first) > lengthBytes && first[lengthBytes] == '{' {
		if n, err := headerLength(first, -1); err == nil && n >= 2 {
			return KindSafetensors
		}
	}
	for _, m := range magics {
		if len(first) >= m.off && bytes.HasPrefix(first[m.off:], []byte(m.bytes)) {
			return m.kind
		}
	}
	return KindUnknown
}

// checkKind refuses a file that is recognised as something else.
func checkKind(first []byte) error {
	switch k := Sniff(first); k {
	case KindUnknown, KindSafetensors:
		return nil
	default:
		return errors.Wrapf(ErrOtherFormat, "the file is %s", k)
	}
}
