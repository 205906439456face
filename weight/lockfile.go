package weight

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const lockSuffix, buildSuffix = "%lock", "%build"

// lockRecord is what the lock file of a load directory holds. Those of earlier versions held the digest alone.
type lockRecord struct {
	Digest  string      `json:"digest"`            // of the manifest that the directory was made from
	Holders []processID `json:"holders,omitempty"` // detached processes, which may have closed the lock's descriptor
	Readers []reader    `json:"readers,omitempty"` // other users that the directory is handed out to
}

// reader is a user who was given access, and the directories above that were opened to let him through.
type reader struct {
	UID  uint32   `json:"uid"`
	Dirs []string `json:"dirs,omitempty"`
}

// readLock never fails: a record cut by a crash says nothing.
func readLock(f io.ReaderAt) (r lockRecord) {
	p := make([]byte, 1<<20)
	n, _ := f.ReadAt(p, 0)
	p = p[:n]
	if len(p) > 0 && p[0] != '{' {
		r.Digest = string(p)
		return r
	}
	if json.NewDecoder(bytes.NewReader(p)).Decode(&r) != nil { // what follows is the rest of a longer one
		return lockRecord{}
	}
	return r
}

// writeLock replaces the record in one write, which a crash of the process can't cut.
func writeLock(f *os.File, r lockRecord) error {
	p, err := json.Marshal(r)
	if err == nil {
		_, err = f.WriteAt(p, 0)
	}
	if err == nil {
		err = f.Truncate(int64(len(p)))
	}
	return err
}

// readLockAt is the record beside a directory.
func readLockAt(path string) lockRecord {
	f, err := os.Open(path + lockSuffix)
	if err != nil {
		return lockRecord{}
	}
	defer func() { _ = f.Close() }()
	return readLock(f)
}

// living are the processes of the record that still use the directory. Those that this program noted hold the lock as
// long as they do.
func (r lockRecord) living() (pids []int) {
	for _, p := range r.Holders {
		if p.Program == thisProgram() {
			continue
		}
		if pid := p.find(); pid != 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// noteHolder records that this process uses a directory, for what it turns into by exec. Without /proc the lock alone
// tells.
func (m *Manager) noteHolder(d *directory) error {
	m.lockFiles.Lock()
	defer m.lockFiles.Unlock()
	self, err := thisProcess()
	if err != nil {
		return nil
	}
	r := readLock(d.lock)
	r.Holders = slices.DeleteFunc(r.Holders, func(p processID) bool { return p.find() == 0 || p.PID == self.PID && p.Start == self.Start })
	r.Holders = append(r.Holders, self)
	return writeLock(d.lock, r)
}

// unused reports whether nobody uses the directory of a lock file, and holds the exclusive lock then. It asks three
// witnesses, since an engine's launcher may close the lock's descriptor: the lock; the processes that the record names,
// which are what a detached program turned into; and who has a file of the directory mapped or open, for engines that
// went on in another process.
func unused(lock *os.File, path string) bool {
	if !tryAlone(int(lock.Fd())) {
		return false
	}
	if len(readLock(lock).living()) == 0 && len(filesOf(path).users()) == 0 {
		return true
	}
	_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
	return false
}

// tryAlone takes the exclusive lock if nobody has the file open with a lock. A child of this process has every
// descriptor, and so locks that were given up here, until its exec has closed them: ForkLock keeps new ones away, and
// those on their way get a few milliseconds. One that inherited the lock on purpose has it longer.
func tryAlone(fd int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for wait := 100 * time.Microsecond; ; wait *= 2 {
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			return true
		}
		if wait > 4*time.Millisecond {
			return false
		}
		time.Sleep(wait)
	}
}

// openLock opens or makes the lock file of a directory.
func openLock(path string) (f *os.File, made bool, err error) {
	for {
		f, err = os.OpenFile(path+lockSuffix, os.O_RDWR, 0)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, false, err
		}
		f, err = os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, true, err
		}
	}
}

// locked are the directories in root that have a lock file.
func locked(root string) (paths []string, err error) {
	entries, err := os.ReadDir(root)
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), lockSuffix); ok && e.Type().IsRegular() {
			paths = append(paths, filepath.Join(root, name))
		}
	}
	return paths, err
}
