package arena

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

const fileSuffix = ".obj"

// FileSet makes files that hold one object each: in a directory on tmpfs, where a loader can open and link them, or as
// memfds, which die with the process. Its methods may be called from several goroutines.
type FileSet struct {
	dir    string
	limits MemLimits
	last   atomic.Uint64 // the highest id given or found
	count  atomic.Int64  // files that are open
	cache  fileCache

	// open opens the directory, and makes it if it is missing.
	open func() (int, error)

	mu sync.Mutex
	at *dirHandle // never nil once the set is open, nil for memfds
}

// dirHandle is an open directory. It is shared by the set and its files, and closed when the last lets go of it.
type dirHandle struct {
	fd   int
	uses atomic.Int64
}

func (d *dirHandle) drop() {
	if d != nil && d.uses.Add(-1) == 0 {
		_ = unix.Close(d.fd)
	}
}

func (d *dirHandle) share() *dirHandle {
	if d != nil {
		d.uses.Add(1)
	}
	return d
}

// named reports whether the path still stands for the directory.
func (d *dirHandle) named(path string) bool {
	id, err := identify(d.fd)
	return err == nil && id.names(unix.AT_FDCWD, path)
}

// OpenFileSet opens the set of files in dir, which is made if it does not exist and must be this user's alone; "" is a set
// of memfds.
func OpenFileSet(dir string, limits MemLimits) (*FileSet, error) {
	return newFileSet(dir, limits, func() (int, error) {
		parent, err := unix.Open(filepath.Dir(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		defer unix.Close(parent)
		return makePrivate(parent, filepath.Base(dir))
	})
}

// newFileSet opens the directory and finds the ids that are in use.
func newFileSet(dir string, limits MemLimits, open func() (int, error)) (*FileSet, error) {
	f := &FileSet{dir: dir, limits: limits, open: open}
	f.cache.limits = limits
	if dir == "" {
		return f, nil
	}
	if err := f.reopen(nil); err != nil {
		return nil, errors.Wrap(err, "open file set")
	}
	ids, err := f.List()
	if err != nil {
		_ = f.Close()
		return nil, errors.Wrap(err, "open file set")
	}
	if len(ids) > 0 {
		f.last.Store(ids[len(ids)-1])
	}
	return f, nil
}

// reopen opens the directory again, unless another goroutine did since was was in use.
func (f *FileSet) reopen(was *dirHandle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at != was {
		return nil
	}
	fd, err := f.open()
	if err != nil {
		return errors.Wrapf(err, "directory %s", f.dir)
	}
	was.drop()
	f.at = &dirHandle{fd: fd}
	f.at.uses.Store(1)
	return nil
}

// handle returns the directory; the caller drops it.
func (f *FileSet) handle() *dirHandle {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at.share()
}

// Close lets go of the directory. Files stay as they are, open ones too.
func (f *FileSet) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at.drop()
	f.at = nil
	return nil
}

// Skip keeps ids up to last from being given, for ids that a catalogue still names though their files are gone.
func (f *FileSet) Skip(last uint64) {
	for {
		old := f.last.Load()
		if old >= last || f.last.CompareAndSwap(old, last) {
			return
		}
	}
}

// List returns the ids of the files in the directory, ascending. A set of memfds has none.
func (f *FileSet) List() ([]uint64, error) {
	if f.dir == "" {
		return nil, nil
	}
	at := f.handle()
	defer at.drop()
	names, err := readNames(at.fd)
	if err != nil {
		return nil, errors.Wrap(err, "list files")
	}
	var ids []uint64
	for _, name := range names {
		id, err := strconv.ParseUint(strings.TrimSuffix(name, fileSuffix), 16, 64)
		if err == nil && id > 0 && name == fileName(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Remove deletes the file of an id that nobody has open as a File, such as an orphan found by List.
func (f *FileSet) Remove(id uint64) error {
	if f.dir == "" {
		return errors.Wrapf(fs.ErrNotExist, "remove file %d of a set of memfds", id)
	}
	at := f.handle()
	defer at.drop()
	return errors.Wrapf(unix.Unlinkat(at.fd, fileName(id), 0), "remove file %d", id)
}

func fileName(id uint64) string { return fmt.Sprintf("%016x%s", id, fileSuffix) }

// path returns the name of a file, "" for a memfd.
func (f *FileSet) path(id uint64) string {
	if f.dir == "" {
		return ""
	}
	return filepath.Join(f.dir, fileName(id))
}

// Create makes a file of size bytes, all zero, with all of its memory taken, pinned once. Its id is above 0 and has not
// been given in the life of this set. The error wraps ErrLimit if the machine has not got the memory, and ErrTooManyFiles
// if the set has as many memfds, or pinned files, as it may. Only this user can open the file until it is sealed.
func (f *FileSet) Create(size int64) (*File, error) {
	if size < 0 || size > maxSegmentBytes {
		return nil, errors.Errorf("create file of %d bytes", size)
	}
	id := f.last.Add(1)
	file := f.file(id, size)
	if err := f.countFile(); err != nil {
		return nil, errors.Wrapf(err, "create file %d", id)
	}
	var err error
	if file.fd, file.at, err = f.create(id); err != nil {
		f.count.Add(-1)
		return nil, errors.Wrapf(limitError(err, "make a file"), "create file %d", id)
	}
	if err := file.fill(f.limits); err != nil {
		_ = file.Remove()
		return nil, errors.Wrapf(limitError(err, "take memory"), "create file %d of %d bytes", id, size)
	}
	return file, nil
}

// create makes the file of an id. A directory that was deleted is made again.
func (f *FileSet) create(id uint64) (fd int, at *dirHandle, err error) {
	if f.dir == "" {
		fd, err = createMemfd("mooncake-object")
		return fd, nil, err
	}
	for range 3 {
		at = f.handle()
		fd, err = createFile(at.fd, fileName(id))
		if err == nil && at.named(f.dir) {
			return fd, at, nil
		}
		if err == nil { // in a directory that lost its name: nobody could open the file
			_ = unix.Unlinkat(at.fd, fileName(id), 0)
			_ = unix.Close(fd)
			err = errors.Wrapf(fs.ErrNotExist, "directory %s", f.dir)
		}
		if errors.Is(err, fs.ErrNotExist) {
			if e := f.reopen(at); e != nil {
				err = e
			}
		}
		at.drop()
		if !errors.Is(err, fs.ErrNotExist) {
			return -1, nil, err
		}
	}
	return -1, nil, err
}

func (f *FileSet) file(id uint64, size int64) *File {
	file := &File{id: id, path: f.path(id), fd: -1, size: size, cache: &f.cache, count: &f.count}
	file.pins.Store(unmapped)
	return file
}

// countFile counts one more file, of which a memfd keeps a descriptor.
func (f *FileSet) countFile() error {
	limit := f.limits.maxDescriptors()
	if n := f.count.Add(1); f.dir == "" && n > limit {
		f.count.Add(-1)
		return errors.Wrapf(ErrTooManyFiles, "%d objects have a memfd, a quarter of %s", limit,
			rlimitText(unix.RLIMIT_NOFILE, "RLIMIT_NOFILE (ulimit -n)", ""))
	}
	return nil
}

// Attach finds a file that an earlier process made; Pin maps it, read-only if it was sealed. The error wraps
// fs.ErrNotExist, or ErrCorrupt if the file has not got that size.
func (f *FileSet) Attach(id uint64, size int64) (*File, error) {
	if f.dir == "" {
		return nil, errors.Wrapf(fs.ErrNotExist, "attach file %d of a set of memfds", id)
	}
	f.Skip(id)
	at := f.handle()
	defer at.drop()
	fd, st, err := openRegular(at.fd, fileName(id), unix.O_RDWR)
	if errors.Is(err, unix.EACCES) {
		fd, st, err = openRegular(at.fd, fileName(id), unix.O_RDONLY)
	}
	if err != nil {
		return nil, errors.Wrapf(limitError(err, "open a file"), "attach file %d", id)
	}
	_ = unix.Close(fd) // there may be very many files
	if st.Size != size {
		return nil, errors.Wrapf(ErrCorrupt, "attach file %d: %d bytes, want %d", id, st.Size, size)
	}
	f.count.Add(1)
	file := f.file(id, size)
	file.at = at.share()
	file.file, file.sealed = identity{st.Dev, st.Ino}, st.Mode&0o222 == 0
	return file, nil
}

// File is the file of one object. Its bytes are mapped while it is pinned, and often longer. A named one holds no
// descriptor.
type File struct {
	id    uint64
	path  string
	at    *dirHandle // the directory of a named file
	size  int64
	file  identity
	cache *fileCache
	count *atomic.Int64 // of the set

	handed atomic.Bool
	pins   atomic.Int64 // unmapped, or how often it is pinned
	used   atomic.Bool  // pinned since the cache last looked
	mem    []byte       // written with the cache's lock held and pins unmapped; read while pinned
	slot   int          // in the cache's ring

	mu     sync.Mutex
	sealed bool
	fd     int // of a memfd; a named file's is closed once it is mapped
	closed bool
}

// fill gives a new file its size and its memory, and pins it.
func (f *File) fill(limits MemLimits) (err error) {
	if f.file, err = identify(f.fd); err != nil {
		return err
	}
	if err := setSize(f.fd, f.size); err != nil {
		return err
	}
	if f.size == 0 {
		return f.dropDescriptor()
	}
	if err := f.cache.book(); err != nil {
		return err
	}
	mem, err := f.mapOf(f.fd)
	f.cache.mapped(f, mem)
	if err != nil {
		return err
	}
	// No huge page at the end: it would take memory behind the file's size.
	adviseHuge(mem[:f.size/StepBytes*StepBytes])
	huge := limits.sharedHugePages()
	for done := int64(0); done < f.size; done += checkBytes {
		if err := limits.CheckFile(f.fd, f.size-done); err != nil {
			return err
		}
		if err := populate(f.fd, mem[done:min(done+checkBytes, f.size)], done, huge); err != nil {
			return err
		}
	}
	return f.dropDescriptor()
}

// chmod changes the mode of a named file, reached through its directory.
func (f *File) chmod(mode uint32) error {
	if !f.file.names(f.at.fd, fileName(f.id)) {
		return fs.ErrNotExist
	}
	return unix.Fchmodat(f.at.fd, fileName(f.id), mode, 0)
}

// dropDescriptor closes the descriptor of a named file: its mapping needs none, and there may be very many files.
func (f *File) dropDescriptor() error {
	if f.path == "" {
		return nil
	}
	fd := f.fd
	f.fd = -1
	return errors.Wrap(unix.Close(fd), "close descriptor")
}

// ID returns the id that names the file in its set.
func (f *File) ID() uint64 { return f.id }

// Bytes returns the whole file, which the caller has pinned. It may be written until Seal; a write after is a fault that
// kills the process. Valid until Unpin, Close or Remove.
func (f *File) Bytes() []byte { return f.mem }

// Size returns the size of the file.
func (f *File) Size() int64 { return f.size }

// Path returns the name of the file, "" for a memfd.
func (f *File) Path() string { return f.path }

// ProcPath returns a name by which this process can open the file: Path, or that of a memfd below /proc/self/fd.
func (f *File) ProcPath() string {
	if f.path != "" {
		return f.path
	}
	return fmt.Sprintf("/proc/self/fd/%d", f.fd)
}

// HandOut notes that somebody else may know the file's name, HandedOut says whether it was.
func (f *File) HandOut() { f.handed.Store(true) }

func (f *File) HandedOut() bool { return f.handed.Load() }

// Seal ends the writing of a file that the caller has pinned: the mapping becomes read-only and the mode of the file 0400.
// A memfd can't be changed by anyone after; root can still write a named file.
func (f *File) Seal() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return os.ErrClosed
	}
	if f.pins.Load() != unmapped {
		if err := unix.Mprotect(f.mem, unix.PROT_READ); err != nil {
			return errors.Wrapf(err, "seal file %d", f.id)
		}
	}
	f.sealed = true
	if f.path != "" {
		return errors.Wrapf(f.chmod(0o400), "seal file %d", f.id)
	}
	if err := unix.Fchmod(f.fd, 0o400); err != nil {
		return errors.Wrapf(err, "seal file %d", f.id)
	}
	const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err := unix.FcntlInt(uintptr(f.fd), unix.F_ADD_SEALS, seals)
	return errors.Wrapf(err, "seal file %d", f.id)
}

// Sealed reports whether the file was sealed, here or by the process that made it. One that an earlier process left unsealed
// was never finished.
func (f *File) Sealed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sealed
}

// Stamp is what shows that a file is still the one that was handed out: who writes it by write(2) or truncates it
// changes Mtime, who replaces it Ino. Writing through a mapping on tmpfs leaves no trace here.
type Stamp struct {
	Size, MtimeNs int64
	Ino           uint64
}

// Stamp returns the stamp of what the file's name stands for now. The error wraps fs.ErrNotExist if it is gone.
func (f *File) Stamp() (Stamp, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return Stamp{}, os.ErrClosed
	}
	var st unix.Stat_t
	var err error
	if f.path != "" {
		err = unix.Fstatat(f.at.fd, fileName(f.id), &st, unix.AT_SYMLINK_NOFOLLOW)
	} else {
		err = unix.Fstat(f.fd, &st)
	}
	return Stamp{st.Size, st.Mtim.Nano(), st.Ino}, errors.Wrapf(err, "stamp of file %d", f.id)
}

// Close unmaps the file. A named one stays; a memfd is gone unless someone else holds it.
func (f *File) Close() error { return f.close(false) }

// Remove deletes the file and unmaps it. Who has it open or linked keeps its bytes.
func (f *File) Remove() error { return f.close(true) }

func (f *File) close(remove bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return os.ErrClosed
	}
	f.closed = true
	var errs [3]error
	if remove && f.path != "" {
		errs[0] = f.file.remove(f.at.fd, fileName(f.id))
	}
	f.count.Add(-1)
	errs[1] = unmapIdle(f.cache.drop(f))
	if f.fd >= 0 {
		errs[2] = unix.Close(f.fd)
		f.fd = -1
	}
	f.at.drop()
	for _, err := range errs {
		if err != nil {
			return errors.Wrapf(err, "close file %d", f.id)
		}
	}
	return nil
}
