package ssd

import "io/fs"

// FS is the file layer below the tier. OSFS is the real one; ssdtest.FaultFS loses what was not synced and fails on
// request. Errors wrap those of package syscall; an absent file is fs.ErrNotExist. Safe for concurrent use.
type FS interface {
	// OpenFile opens name with flags of package os. Files bypass the page cache where the file system can.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	ReadDir(dir string) (names []string, err error)
	Stat(name string) (Info, error)
	Remove(name string) error
	Rename(from, to string) error
	MkdirAll(dir string, perm fs.FileMode) error
	// SyncDir makes the names created, renamed and removed in dir durable.
	SyncDir(dir string) error
	// FreeBytes is the room that the file system of dir has for us, -1 if it does not say.
	FreeBytes(dir string) (int64, error)
}

// File is one open file. Buffers, lengths and offsets of ReadAt and WriteAt are multiples of BlockBytes. ReadAt returns
// io.EOF with a short count at the end of the file; WriteAt may have written a part when it returns an error.
type File interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// Sync makes what was written, and the size, durable.
	Sync() error
	// Truncate sets the size and gives back blocks allocated behind it.
	Truncate(size int64) error
	// Allocate reserves blocks for [off, off+n), which reads as zeros, and extends the size to cover it. Writes that do
	// not extend the file may run side by side.
	Allocate(off, n int64) error
	// PunchHole gives the blocks of [off, off+n) back; the range reads as zeros. The size stays.
	PunchHole(off, n int64) error
	Chmod(perm fs.FileMode) error
	// Readahead asks for [off, off+n) to be brought into the page cache, for others who map the file.
	Readahead(off, n int64) error
	Close() error
}

// Info describes a file.
type Info struct {
	Size    int64
	Blocks  int64 // allocated, in units of 512 bytes
	MtimeNs int64
	Ino     uint64
	Mode    fs.FileMode
}

// BlockBytes is the alignment of direct I/O: of offsets, lengths and memory.
const BlockBytes = 4096
