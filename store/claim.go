package store

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cespare/xxhash/v2"
	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// A directory and the segment that it left prove to each other that they belong together. The segment records what no copy
// of the directory has, its inode, and both have the epoch, a random number that changes at each open and close. The
// directory's side is the file MEMORY: the segment's name, the epoch the segment has, and the one that it gets next. That is
// written and synced first, the segment after it; so a crash between leaves a segment at the first epoch, and the directory
// accepts both.
//
// So a copy starts cold, because its inode differs. A directory that was set back to an earlier state does, and of two clones
// that can't be told apart by inode the second one that opens, because the epoch differs. A directory that was moved keeps
// its memory. What is left: a store that was killed, set back in place to a state of the same run, with the same inodes.
//
// MEMORY is 64 bytes, little endian: magic, the name, both epochs, XXH64 of all before.
type claim struct {
	name      [16]byte
	has, next [16]byte
}

const (
	claimFile  = "MEMORY"
	claimMagic = "MCMEM\x00\x01\x00" // the 1 is the format
	claimBytes = 64
)

func (c *claim) encode() []byte {
	p := append([]byte(claimMagic), c.name[:]...)
	p = append(append(p, c.has[:]...), c.next[:]...)
	return binary.LittleEndian.AppendUint64(p, xxhash.Sum64(p))
}

// home is the name of the segment's directory.
func (c *claim) home() string { return homePrefix + hex.EncodeToString(c.name[:]) }

const homePrefix = "mooncake-"

func (c *claim) epochs() [][16]byte { return [][16]byte{c.has, c.next} }

// readClaim reads the directory's side; ok is false if it has none, or one that was damaged.
func readClaim(dir int) (c claim, ok bool, err error) {
	fd, err := unix.Openat(dir, claimFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err != nil {
		return c, false, errors.WithMessage(err, claimFile)
	}
	f := os.NewFile(uintptr(fd), claimFile)
	defer f.Close()
	p := make([]byte, claimBytes+1)
	n, err := io.ReadFull(f, p)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return c, false, errors.WithMessage(err, claimFile)
	}
	c = claim{[16]byte(p[8:24]), [16]byte(p[24:40]), [16]byte(p[40:56])}
	return c, n == claimBytes && bytes.Equal(p[:n], c.encode()), nil
}

// writeClaim replaces the directory's side and syncs it.
func writeClaim(dir int, c *claim) error {
	const temporary = claimFile + ".new"
	if err := unix.Unlinkat(dir, temporary, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.WithMessage(err, claimFile)
	}
	fd, err := unix.Openat(dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return errors.WithMessage(err, claimFile)
	}
	f := os.NewFile(uintptr(fd), claimFile)
	_, err = f.Write(c.encode())
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = unix.Renameat(dir, temporary, dir, claimFile)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temporary, 0)
		return errors.WithMessage(err, claimFile)
	}
	return errors.WithMessage(unix.Fsync(dir), claimFile)
}

// dropClaim makes the directory claim no memory.
func dropClaim(dir int) error {
	if err := unix.Unlinkat(dir, claimFile, 0); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.WithMessage(err, claimFile)
	}
	return errors.WithMessage(unix.Fsync(dir), claimFile)
}

// ownerOf says which directory this is.
func ownerOf(dir int, path string) (o arena.Owner, err error) {
	var st unix.Statx_t
	err = unix.Statx(dir, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // an old sandbox
		var old unix.Stat_t
		if err := unix.Fstat(dir, &old); err != nil {
			return o, err
		}
		return arena.Owner{Dev: old.Dev, Ino: old.Ino, PID: os.Getpid(), MountSpace: mountSpace(), Path: path}, nil
	}
	if err != nil {
		return o, errors.WithMessage(err, "statx")
	}
	o = arena.Owner{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, PID: os.Getpid(), MountSpace: mountSpace(), Path: path}
	if st.Mask&unix.STATX_BTIME != 0 {
		o.BornNs = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return o, nil
}

// mountSpace is the mount namespace of this process: 0 if it can't be told.
func mountSpace() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/mnt", &st) != nil {
		return 0
	}
	return st.Ino
}

func newEpoch() (e [16]byte) {
	if _, err := rand.Read(e[:]); err != nil {
		panic(fmt.Sprintf("store: BUG: no random numbers: %v", err))
	}
	return e
}
