// Package source says where the files of a model or a checkpoint come from: a local directory here, object storage
// and hubs as further openers.
//
// A Mux turns a location (a path or a URL) into a Source; a Source lists and opens files; a File is read in sequence or
// by ranges. Every file has an identity, and a file that changes between being listed and being read to the end is
// ErrChanged, never a mix of old and new bytes.
package source

import (
	"context"
	"io"
	"time"
)

// Limits of every source. One past them is ErrLimit.
const (
	MaxFiles     = 100_000 // files that one List returns
	MaxDepth     = 32      // elements of a file's name: "a/b" has two
	MaxNameBytes = 4096    // bytes of a file's name
)

// Source is a tree of files, or a single file, that is only read. Its methods may be called by many goroutines.
//
// Names are relative, slash-separated, valid UTF-8 and pass CheckName. An implementation hides pages, redirects and
// retries: what it returns is final. It honours ctx and returns an error that matches ctx.Err().
type Source interface {
	// String is the location for people and logs, without secrets.
	String() string

	// List returns every file, sorted by name. It fails as a whole: with no error the listing is complete.
	List(ctx context.Context) (*Listing, error)

	// Stat describes one file as List would. Errors: ErrBadName, ErrRefused, ErrNotFound.
	Stat(ctx context.Context, name string) (Info, error)

	// Open opens the file that info, from List or Stat, describes. If it is another one by now: ErrChanged; if it is
	// gone: ErrNotFound. A File may outlive its Source's Close.
	Open(ctx context.Context, info Info) (File, error)

	// Close frees what the source holds. Later calls return ErrClosed; a second Close returns nil.
	Close() error
}

// File is one open file. ReadAt and NewReader may be called by many goroutines; Close comes after them.
type File interface {
	// Info is the file's identity when it was opened; it knows at least what the Info given to Open knew.
	Info() Info

	// NewReader reads n bytes from off in sequence; n < 0 means to the end. It is the way to read a whole file: give
	// Read large buffers, or use io.Copy. It ends with io.EOF only after exactly the bytes asked for, and only if the
	// file is still the one that Info describes; else with ErrChanged or ErrShort. A range outside the file is ErrShort. The
	// reader is closed before its File, and may be closed at any point of the stream.
	NewReader(ctx context.Context, off, n int64) (io.ReadCloser, error)

	// ReadAt fills p from off, as io.ReaderAt does: n < len(p) comes with an error, io.EOF at the end of the file.
	// It reports ErrChanged if the file changed before the read was over.
	ReadAt(ctx context.Context, p []byte, off int64) (n int, err error)

	Close() error
}

// Info describes a file at one moment. Two Infos that are Same mean the same bytes, as far as the source can tell.
type Info struct {
	Name    string    // as in Source
	Size    int64     // bytes, -1 when unknown until the file has been read
	ModTime time.Time // zero when unknown
	ETag    string    // opaque version, without quotes or W/; empty when unknown
	FileID  string    // which file carries the bytes, where the source numbers files; empty when unknown
	Digest  Digest    // what the source claims about the content, not verified; zero when unknown
}

// Digest is a checksum of a file's content. Algorithm is lower case: "sha256" and "sha1" of the bytes, "git-sha1" of
// git's blob object, or what an opener documents, such as "crc64nvme". Hex is lower case.
type Digest struct {
	Algorithm string
	Hex       string
}

// Same says that nothing known to both Infos differs. The name is not compared. ETag and FileID are two ways to tell a
// version: one that agrees is enough. A file that got another mode or another link keeps its FileID, and some file
// systems (FUSE, network) number a file anew at every look-up.
func (i Info) Same(o Info) bool {
	switch {
	case i.Size >= 0 && o.Size >= 0 && i.Size != o.Size:
		return false
	case i.ETag != "" && o.ETag != "" && i.ETag != o.ETag && (i.FileID == "" || i.FileID != o.FileID):
		return false
	case !i.ModTime.IsZero() && !o.ModTime.IsZero() && !i.ModTime.Equal(o.ModTime):
		return false
	case i.Digest.Algorithm != o.Digest.Algorithm || i.Digest.Hex == "" || o.Digest.Hex == "":
		return true
	}
	return i.Digest.Hex == o.Digest.Hex
}

// Listing is the content of a source.
type Listing struct {
	Files   []Info    // sorted by name
	Refused []Refusal // sorted by name; opening one fails with the same error
}

// Refusal is an entry that can't be read: a device, a link out of the root, a name that is not UTF-8. It does not fail
// the listing, because most such entries are not part of the model; who needs the name reports Err.
type Refusal struct {
	Name string // in Go's quoted form (with the quotes) when it is not valid UTF-8
	Err  error  // ErrRefused, ErrBadName, or ErrNotFound for a link to nothing; names the entry
}

// ReaderAt reads f as a plain io.ReaderAt, for code that takes no context.
func ReaderAt(ctx context.Context, f File) io.ReaderAt { return readerAt{ctx, f} }

type readerAt struct {
	ctx context.Context
	f   File
}

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r.f.ReadAt(r.ctx, p, off) }
