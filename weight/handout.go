package weight

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/weight/internal/acl"
)

// A load directory, as everything of the store, can only be entered by the store's user. LoadOptions.User hands it out
// to one other user, by access control lists that name him:
//
//   - its directories can be listed and its files read. A hard link shares the rights of the store's own file, which he
//     reaches through this directory alone;
//   - the load root, and the store's directory above it, can be passed through;
//   - nothing else changes: a directory further up that he can't pass is an error, before anything is handed out.
//
// The lock file records it first, so that a crash at any point leaves what takeBack takes back: when the directory goes,
// that is with the last Loaded and engine, or at the next Open after them.

// someone is a user to hand out to.
type someone struct {
	acl.User
	name string
}

func (s someone) String() string {
	if s.name == "" {
		return fmt.Sprintf("user %d", s.UID)
	}
	return fmt.Sprintf("user %s (%d)", s.name, s.UID)
}

// findUser looks up a name, or a number that may have a group's behind a colon.
func findUser(text string) (someone, error) {
	text, group, hasGroup := strings.Cut(text, ":")
	u, err := user.Lookup(text)
	if err != nil {
		u, err = user.LookupId(text)
	}
	if err != nil { // a number needs no name, as in a container
		uid, bad := strconv.ParseUint(text, 10, 32)
		if bad != nil || uid == 1<<32-1 {
			return someone{}, errors.WithMessagef(ErrInvalid, "user %q: %v", text, err)
		}
		u = &user.User{Uid: text, Gid: text}
	}
	s := someone{name: u.Username}
	groups, _ := u.GroupIds()
	if hasGroup {
		if g, err := user.LookupGroup(group); err == nil {
			group = g.Gid
		}
		groups = append(groups, group)
	}
	for _, g := range append(groups, u.Gid) {
		gid, err := strconv.ParseUint(g, 10, 32)
		if err != nil {
			return someone{}, errors.WithMessagef(ErrInvalid, "user %q: group %q", text, g)
		}
		s.Groups = append(s.Groups, uint32(gid))
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	s.UID = uint32(uid)
	return s, err
}

// handOut lets another user read a directory. What was done for him before is done once.
func (m *Manager) handOut(d *directory, to someone) (opened []string, err error) {
	if int(to.UID) == os.Geteuid() || to.UID == 0 {
		return nil, nil
	}
	m.lockFiles.Lock()
	defer m.lockFiles.Unlock()
	if err := onlyOwnFiles(d.path); err != nil {
		return nil, errors.WithMessagef(err, "hand out to %v", to)
	}
	through, err := m.wayFor(d.path, to)
	if err != nil {
		return nil, err
	}
	r := readLock(d.lock)
	r.Readers = slices.DeleteFunc(r.Readers, func(x reader) bool { return x.UID == to.UID })
	r.Readers = append(r.Readers, reader{to.UID, through})
	if err := writeLock(d.lock, r); err != nil {
		return nil, err
	}
	if err := grantTree(d.path, to.UID); err != nil {
		return nil, noLists(err)
	}
	for _, dir := range through {
		if err := acl.Grant(dir, to.UID, acl.Exec); err != nil {
			return nil, noLists(err)
		}
	}
	return append(through, d.path), nil
}

func noLists(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return errors.WithMessage(err, "the file system has no access control lists, which hand a directory out to one user (ext4, xfs, btrfs and tmpfs have them)")
	}
	return err
}

// onlyOwnFiles refuses a directory with symbolic links: they lead into the memory of this process, which no other user
// may look into, or to the store's files on another file system, which he would reach by no way that is his.
func onlyOwnFiles(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			return errors.WithMessagef(ErrInvalid, "file %q is a link to %s, in memory or on another file system: import it durably, "+
				"and load into the store's file system", filepath.Base(path), target)
		}
		return err
	})
}

func grantTree(root string, uid uint32) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return acl.Grant(path, uid, acl.Read|acl.Exec)
		}
		return acl.Grant(path, uid, acl.Read)
	})
}

// wayFor returns the directories above path that are the store's and must be opened for a user to pass. One of
// somebody else's that he can't pass is an error.
func (m *Manager) wayFor(path string, to someone) (through []string, err error) {
	var closed []string
	for _, dir := range above(path) {
		ok, err := acl.Allows(dir, to.User, acl.Exec)
		switch {
		case err != nil:
			return nil, err
		case m.isOurs(dir):
			if !ok || m.othersOpened(path, dir, to.UID) {
				through = append(through, dir)
			}
		case !ok:
			closed = append(closed, dir)
		}
	}
	if len(closed) == 0 {
		return through, nil
	}
	list := strings.Join(closed, " ")
	return nil, errors.WithMessagef(ErrInvalid, "%v can't enter %s, on the way to %s: run \"setfacl -m u:%d:x %s\", or \"chmod o+x %s\", "+
		"or keep the store elsewhere", to, strings.Join(closed, " and "), path, to.UID, list, list)
}

// above are the directories that lead to path, from the root down, by its name and, if there are symbolic links, by
// what it stands for.
func above(path string) (dirs []string) {
	add := func(p string) {
		var up []string
		for d := filepath.Dir(p); ; d = filepath.Dir(d) {
			up = append(up, d)
			if d == filepath.Dir(d) {
				break
			}
		}
		slices.Reverse(up)
		for _, d := range up {
			if !slices.Contains(dirs, d) {
				dirs = append(dirs, d)
			}
		}
	}
	add(path)
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		add(real)
	}
	return dirs
}

// isOurs reports whether a directory is the load root or the store's.
func (m *Manager) isOurs(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc([]string{m.loadRoot, m.s.Dir()}, func(ours string) bool {
		own, err := os.Stat(cmp.Or(ours, m.loadRoot))
		return err == nil && os.SameFile(own, info)
	})
}

// othersOpened reports whether dir was opened to a user for another load directory. This one then needs it too, after
// that one is gone.
func (m *Manager) othersOpened(path, dir string, uid uint32) bool {
	return slices.ContainsFunc(m.readersBut(path), func(o loadedFor) bool { return o.UID == uid && slices.Contains(o.Dirs, dir) })
}

// loadedFor is a reader of the load directory at path.
type loadedFor struct {
	reader
	path string
}

// readersBut are the readers of all load directories but the one at path.
func (m *Manager) readersBut(path string) (out []loadedFor) {
	paths, _ := locked(m.loadRoot)
	for _, p := range paths {
		if p == path {
			continue
		}
		for _, r := range readLockAt(p).Readers {
			out = append(out, loadedFor{r, p})
		}
	}
	return out
}

// takeBack ends what a directory, which goes now, gave other users. The store's files that are linked into it stay
// readable for those who have them in another load directory.
func (m *Manager) takeBack(path string, r lockRecord) error {
	if len(r.Readers) == 0 {
		return nil
	}
	others := m.readersBut(path)
	keep := make(map[fileID][]uint32)
	for _, o := range others {
		_ = eachFile(o.path, func(_ string, id fileID) error {
			keep[id] = append(keep[id], o.UID)
			return nil
		})
	}
	for _, root := range []string{path, path + buildSuffix} {
		err := eachFile(root, func(name string, id fileID) error {
			return acl.Keep(name, func(uid uint32) bool { return slices.Contains(keep[id], uid) })
		})
		if err != nil {
			return err
		}
	}
	for _, x := range r.Readers {
		for _, dir := range x.Dirs {
			if slices.ContainsFunc(others, func(o loadedFor) bool { return o.UID == x.UID && slices.Contains(o.Dirs, dir) }) {
				continue
			}
			if err := acl.Revoke(dir, x.UID); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// eachFile calls fn for the regular files of a directory that have other names too. What is gone is left out.
func eachFile(root string, fn func(path string, id fileID) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Nlink < 2 {
			return nil
		}
		return fn(path, fileID{st.Dev, st.Ino})
	})
}
