package safetensors

import (
	"fmt"

	"github.com/pkg/errors"
)

// ErrInvalid matches every error that says a file, header or index is not valid, as opposed to one that could not be read.
var ErrInvalid = errors.New("safetensors: invalid")

// The errors of this package. Messages name the tensor or shard, and the byte in the header where there is one.
var (
	// The file.
	ErrTruncated      = fmt.Errorf("file is cut short (%w)", ErrInvalid)
	ErrTrailing       = fmt.Errorf("bytes after the last tensor (%w)", ErrInvalid)
	ErrHeaderTooLarge = fmt.Errorf("header too large (%w)", ErrInvalid)
	ErrOtherFormat    = fmt.Errorf("not in safetensors format (%w)", ErrInvalid)
	ErrLFSPointer     = fmt.Errorf("a git LFS pointer instead of the file (%w)", ErrInvalid) // see LFSPointerError

	// The header.
	ErrHeader  = fmt.Errorf("malformed header (%w)", ErrInvalid)
	ErrDType   = fmt.Errorf("unknown dtype (%w)", ErrInvalid)
	ErrShape   = fmt.Errorf("impossible shape (%w)", ErrInvalid)
	ErrOffsets = fmt.Errorf("wrong data offsets (%w)", ErrInvalid)

	// The index.
	ErrIndex           = fmt.Errorf("malformed index (%w)", ErrInvalid)
	ErrShardPath       = fmt.Errorf("shard path leads out of the model (%w)", ErrInvalid)
	ErrMissingShard    = fmt.Errorf("missing shard (%w)", ErrInvalid)
	ErrMissingTensor   = fmt.Errorf("missing tensor (%w)", ErrInvalid)
	ErrDuplicateTensor = fmt.Errorf("tensor in two shards (%w)", ErrInvalid)

	// Writing: the caller's arguments. ErrDType and ErrShape are returned too.
	ErrName     = errors.New("safetensors: invalid tensor name")
	ErrDataSize = errors.New("safetensors: wrong number of bytes for a tensor")
)

// LFSPointerError says that a file is the text git puts in the place of one that git LFS holds. Fetch the content,
// for instance with "git lfs pull". It matches ErrLFSPointer.
type LFSPointerError struct {
	SHA256 string // of the content, hex; empty when the pointer does not say
	Size   int64  // of the content in bytes, -1 when the pointer does not say
}

func (e *LFSPointerError) Error() string {
	return fmt.Sprintf("%v: expected %d bytes with SHA-256 %s", ErrLFSPointer, e.Size, e.SHA256)
}

// Unwrap makes errors.Is find ErrLFSPointer.
func (e *LFSPointerError) Unwrap() error { return ErrLFSPointer }

// quote shortens a name of any length for a message.
func quote(name string) string {
	const limit = 200
	if len(name) > limit {
		return fmt.Sprintf("%q... (%d bytes)", name[:limit], len(name))
	}
	return fmt.Sprintf("%q", name)
}
