package ssd

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/pkg/errors"
)

const (
	readBytes   = 1 << 20 // piece of a read
	readBuffers = 4       // reads in flight, and staging buffers for those that need one
	ownBytes    = 4 << 20 // piece of an own file's write
)

// Options of a tier. The zero value is a good default.
type Options struct {
	// StoreID is written into every file; a directory of another store is refused. Default: zeros.
	StoreID [16]byte
	// ContainerBytes is where a container ends and the next begins; a larger record has one to itself.
	// A multiple of 4096. Default: 256 MiB.
	ContainerBytes int64
	// BatchBytes is the size of each of the two staging buffers of Append. A multiple of 4096. Default: 8 MiB.
	BatchBytes int64
	// QuotaBytes bounds the bytes on disk. Default: no bound but the file system's.
	QuotaBytes int64
	// NextFile is a lower bound for the ids of new files. Default: what the directory itself says.
	NextFile uint32
	// Repair makes a TIER file that does not verify anew. Default: it is an error.
	Repair bool
	// OwnWriters bounds the own data files written at once; each stages 8 MiB. Default: 8.
	OwnWriters int
	// ReadaheadBytes is how much of a finished own file is asked into the page cache, where a loader that maps it will
	// look for it. Negative: none. Default: 4 GiB.
	ReadaheadBytes int64
}

func (o Options) withDefaults() Options {
	setDefault(&o.ContainerBytes, 256<<20)
	setDefault(&o.BatchBytes, 8<<20)
	setDefault(&o.OwnWriters, 8)
	setDefault(&o.ReadaheadBytes, 4<<30)
	return o
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Validate reports every violation.
func (o Options) Validate() error {
	o = o.withDefaults()
	var bad []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	const minBytes, maxContainer = 64 << 10, 128 << 30
	check(o.ContainerBytes%BlockBytes == 0 && o.ContainerBytes >= minBytes && o.ContainerBytes <= maxContainer,
		"ContainerBytes %d: a multiple of %d from %d to %d", o.ContainerBytes, BlockBytes, minBytes, int64(maxContainer))
	check(o.BatchBytes%BlockBytes == 0 && o.BatchBytes >= minBytes && o.BatchBytes <= 1<<30,
		"BatchBytes %d: a multiple of %d from %d to %d", o.BatchBytes, BlockBytes, minBytes, 1<<30)
	check(o.QuotaBytes >= 0, "QuotaBytes %d: not negative", o.QuotaBytes)
	check(o.OwnWriters > 0 && o.OwnWriters <= 256, "OwnWriters %d: from 1 to 256", o.OwnWriters)
	if bad != nil {
		return errors.Wrap(ErrInvalid, strings.Join(bad, "; "))
	}
	return nil
}

// Tier is the files of one directory. One Tier at a time may have a directory; the caller holds its lock. All methods
// are safe for concurrent use; Recover runs before the others. Reads run beside Append, Sync and the Free of other
// records. Memory: two write buffers of BatchBytes, four read buffers of 1 MiB, 8 MiB for each open OwnWriter, all
// outside the Go heap; and 16 bytes or so for each block that is partly free.
type Tier struct {
	fs   FS
	dir  string
	opts Options

	containers handles
	owns       handles
	write      *buffers
	read       *buffers
	own        *buffers

	appending chan struct{} // one token: who has it appends
	ids       chan struct{} // one token: who has it may reserve ids, which is I/O
	firstFile uint32        // files below were there at Open
	running   sync.WaitGroup

	// Lock order: mu, then the locks of handles. No I/O under either.
	mu struct {
		sync.Mutex
		closed   bool
		nextFile uint32 // the next id
		ceiling  uint32 // ids below are reserved on disk
		files    map[uint32]*container
		active   *container // Append writes here; nil: a new one
		dirty    map[*container]struct{}
		dirDirty bool
		owns     map[uint32]int64 // bytes on disk
		writers  map[*OwnWriter]struct{}
		live     int64
		disk     int64
	}
	sync syncer
}

// Usage says what the tier holds.
type Usage struct {
	LiveBytes    int64 // of records and own files that were not freed
	DiskBytes    int64 // blocks written and not given back; blocks allocated ahead do not count
	Containers   int
	OwnFiles     int
	FreeBytes    int64  // of the file system; -1 if it does not say
	StagingBytes int64  // mapped for staging; touched as used
	NextFile     uint32 // the lowest id not given out
}

// Open opens the tier in dir, which is made if it is absent. Recover must follow if the directory was in use before.
func Open(fsys FS, dir string, opts Options) (*Tier, error) {
	if err := opts.Validate(); err != nil {
		return nil, errors.Wrapf(err, "open %s", dir)
	}
	t := &Tier{
		fs: fsys, dir: dir, opts: opts.withDefaults(),
		appending: make(chan struct{}, 1), ids: make(chan struct{}, 1),
	}
	t.mu.files = make(map[uint32]*container)
	t.mu.dirty = make(map[*container]struct{})
	t.mu.owns = make(map[uint32]int64)
	t.mu.writers = make(map[*OwnWriter]struct{})
	t.containers.openFile, t.owns.openFile = t.openContainer, t.openOwn
	t.containers.mu.byID, t.owns.mu.byID = make(map[uint32]*handle), make(map[uint32]*handle)
	if err := t.init(); err != nil {
		return nil, errors.Wrapf(errors.WithMessage(err, "open tier"), "%s", dir)
	}
	return t, nil
}

func (t *Tier) init() (err error) {
	defer func() {
		if err != nil {
			_ = t.closeBuffers()
		}
	}()
	if t.write, err = newBuffers(2, t.opts.BatchBytes); err != nil {
		return err
	}
	if t.read, err = newBuffers(readBuffers, readBytes+2*BlockBytes); err != nil {
		return err
	}
	if t.own, err = newBuffers(2*t.opts.OwnWriters, ownBytes); err != nil {
		return err
	}
	if err := t.fs.MkdirAll(t.dir, 0o700); err != nil {
		return ioError(err, "create directory")
	}
	return t.loadIDs()
}

func (t *Tier) closeBuffers() error {
	err := t.write.close()
	if e := t.read.close(); err == nil {
		err = e
	}
	if e := t.own.close(); err == nil {
		err = e
	}
	return err
}

// Close waits for running operations, aborts open writers and closes every file. It does not sync.
func (t *Tier) Close() error {
	t.mu.Lock()
	if t.mu.closed {
		t.mu.Unlock()
		return nil
	}
	t.mu.closed = true
	t.mu.Unlock()
	t.running.Wait()
	t.mu.Lock()
	var writers []*OwnWriter
	for w := range t.mu.writers {
		writers = append(writers, w)
	}
	t.mu.Unlock()
	for _, w := range writers {
		w.Abort()
	}
	if c := t.mu.active; c != nil {
		_ = c.h.Truncate(c.pos) // blocks allocated ahead; if they stay, Recover frees them
	}
	t.containers.closeAll()
	t.owns.closeAll()
	return t.closeBuffers()
}

// enter begins an operation, and t.running.Done ends it.
func (t *Tier) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return ErrClosed
	}
	t.running.Add(1)
	return nil
}

// Usage reports what the tier holds.
func (t *Tier) Usage() Usage {
	free, err := t.fs.FreeBytes(t.dir)
	if err != nil {
		free = -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return Usage{
		LiveBytes: t.mu.live, DiskBytes: t.mu.disk, Containers: len(t.mu.files), OwnFiles: len(t.mu.owns),
		FreeBytes: free, NextFile: t.mu.nextFile,
		StagingBytes: int64(len(t.write.region) + len(t.read.region) + len(t.own.region)),
	}
}

// checkQuotaLocked says whether n more bytes may go on disk.
func (t *Tier) checkQuotaLocked(n int64) error {
	if q := t.opts.QuotaBytes; q > 0 && t.mu.disk+n > q {
		return errors.Wrapf(ErrNoSpace, "need %d bytes, %d of the quota of %d are in use", n, t.mu.disk, q)
	}
	return nil
}

func containerName(id uint32) string { return fmt.Sprintf("%08x%s", id, containerSuffix) }

func (t *Tier) path(name string) string { return filepath.Join(t.dir, name) }

// OwnPath is the path of an own data file.
func (t *Tier) OwnPath(own uint32) string { return t.path(fmt.Sprintf("%08x%s", own, ownSuffix)) }

// OwnStamp is the size and modification time of an own data file as it lies in the file system: they change when
// somebody tampers with a file that was handed out.
func (t *Tier) OwnStamp(own uint32) (size, mtimeNs int64, err error) {
	info, err := t.fs.Stat(t.OwnPath(own))
	if err != nil {
		return 0, 0, ioError(err, "stat own file %08x", own)
	}
	return info.Size, info.MtimeNs, nil
}

// parseName splits the name of a container or own file.
func parseName(name string) (id uint32, own, ok bool) {
	base, isOwn := strings.CutSuffix(name, ownSuffix)
	if !isOwn {
		var isContainer bool
		if base, isContainer = strings.CutSuffix(name, containerSuffix); !isContainer {
			return 0, false, false
		}
	}
	n, err := strconv.ParseUint(base, 16, 32)
	if err != nil || fmt.Sprintf("%08x", n) != base || n == 0 {
		return 0, false, false
	}
	return uint32(n), isOwn, true
}

// removeFile unlinks a file that may be gone already.
func (t *Tier) removeFile(name string) error {
	if err := t.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
