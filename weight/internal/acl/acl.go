// Package acl lets single other users use a file or a directory, by POSIX access control lists (acl(5)). A list is kept
// in an extended attribute of the file; ext4, xfs, btrfs and tmpfs have it.
package acl

import (
	"encoding/binary"
	"os"
	"slices"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// Permissions, as in the bits of a mode.
const (
	Read = 4
	Exec = 1
)

// User is somebody whose rights are looked at. Groups has the primary group and the supplementary ones.
type User struct {
	UID    uint32
	Groups []uint32
}

// The format of the attribute, <linux/posix_acl_xattr.h>: a version, then entries of tag, permissions and id, ordered by
// tag and id, all little-endian.
const (
	attribute = "system.posix_acl_access"
	version   = 2
	noID      = 1<<32 - 1

	tagOwner  = 0x01
	tagUser   = 0x02
	tagGroup  = 0x04
	tagGroups = 0x08
	tagMask   = 0x10
	tagOther  = 0x20
)

type entry struct {
	tag, perm uint16
	id        uint32
}

// list is the rights to one file.
type list struct {
	uid, gid uint32
	entries  []entry
}

// read returns the list of a file. One without the attribute has what its mode says.
func read(path string) (list, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return list{}, errors.Wrapf(err, "stat %s", path)
	}
	l := list{uid: st.Uid, gid: st.Gid}
	buf := make([]byte, 64<<10) // the most that an attribute can have
	n, err := unix.Getxattr(path, attribute, buf)
	switch {
	case err == nil:
		l.entries, err = parse(buf[:n])
		return l, errors.Wrapf(err, "access control list of %s", path)
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		m := uint16(st.Mode)
		l.entries = []entry{{tagOwner, m >> 6 & 7, noID}, {tagGroup, m >> 3 & 7, noID}, {tagOther, m & 7, noID}}
		return l, nil
	}
	return list{}, errors.Wrapf(err, "access control list of %s", path)
}

func parse(p []byte) ([]entry, error) {
	if len(p) < 4 || len(p)%8 != 4 || binary.LittleEndian.Uint32(p) != version {
		return nil, errors.Errorf("%d bytes of another format", len(p))
	}
	var out []entry
	for p = p[4:]; len(p) > 0; p = p[8:] {
		out = append(out, entry{binary.LittleEndian.Uint16(p), binary.LittleEndian.Uint16(p[2:]) & 7, binary.LittleEndian.Uint32(p[4:])})
	}
	return out, nil
}

// write sets the list of a file. One without named users and groups becomes plain mode bits again.
func (l list) write(path string) error {
	p := binary.LittleEndian.AppendUint32(nil, version)
	for _, e := range l.normal() {
		p = binary.LittleEndian.AppendUint16(p, e.tag)
		p = binary.LittleEndian.AppendUint16(p, e.perm)
		p = binary.LittleEndian.AppendUint32(p, e.id)
	}
	return errors.Wrapf(unix.Setxattr(path, attribute, p, 0), "set access control list of %s", path)
}

// normal is the list in the kernel's order, with the mask that gives every entry what it has.
func (l list) normal() []entry {
	out := slices.DeleteFunc(slices.Clone(l.entries), func(e entry) bool { return e.tag == tagMask })
	mask, named := uint16(0), false
	for _, e := range out {
		if e.tag == tagUser || e.tag == tagGroups || e.tag == tagGroup {
			mask |= e.perm
			named = named || e.tag != tagGroup
		}
	}
	if named {
		out = append(out, entry{tagMask, mask, noID})
	}
	slices.SortFunc(out, func(a, b entry) int {
		if a.tag != b.tag {
			return int(a.tag) - int(b.tag)
		}
		return int(int64(a.id) - int64(b.id))
	})
	return out
}

// effective takes the mask's limit into the entries, so that another mask gives nobody more.
func (l list) effective() {
	mask := l.mask()
	for i, e := range l.entries {
		if e.tag == tagUser || e.tag == tagGroups || e.tag == tagGroup {
			l.entries[i].perm &= mask
		}
	}
}

func (l list) mask() uint16 {
	for _, e := range l.entries {
		if e.tag == tagMask {
			return e.perm
		}
	}
	return 7
}

// Grant gives a user perm on a file, beside what its list says. The error wraps unix.EOPNOTSUPP on a file system without
// lists.
func Grant(path string, uid uint32, perm uint16) error {
	return change(path, func(l *list) {
		i := slices.IndexFunc(l.entries, func(e entry) bool { return e.tag == tagUser && e.id == uid })
		if i < 0 {
			l.entries = append(l.entries, entry{tagUser, perm, uid})
			return
		}
		l.entries[i].perm |= perm
	})
}

// Revoke takes a user's own entry out of the list of a file.
func Revoke(path string, uid uint32) error {
	return Keep(path, func(id uint32) bool { return id != uid })
}

// Keep takes the entries of the users out of the list of a file for whom keep is false.
func Keep(path string, keep func(uid uint32) bool) error {
	l, err := read(path)
	if err != nil {
		return err
	}
	drop := func(e entry) bool { return e.tag == tagUser && !keep(e.id) }
	if !slices.ContainsFunc(l.entries, drop) {
		return nil
	}
	l.effective()
	l.entries = slices.DeleteFunc(l.entries, drop)
	return l.write(path)
}

// Close takes from a file's group and all others what the mode gave them. Users with an entry of their own keep it.
func Close(path string) error {
	l, err := read(path)
	if err != nil {
		return err
	}
	l.effective()
	open, named := false, false
	for i, e := range l.entries {
		if named = named || e.tag == tagUser; e.tag == tagGroup || e.tag == tagOther {
			open = open || e.perm != 0
			l.entries[i].perm = 0
		}
	}
	switch {
	case !open:
		return nil
	case named:
		return l.write(path)
	}
	return errors.Wrap(os.Chmod(path, os.FileMode(l.entries[0].perm)<<6), "close") // works without lists too
}

func change(path string, fn func(*list)) error {
	l, err := read(path)
	if err != nil {
		return err
	}
	l.effective()
	fn(&l)
	return l.write(path)
}

// Allows reports whether a user has perm on a file, by the algorithm of acl(5).
func Allows(path string, u User, perm uint16) (bool, error) {
	l, err := read(path)
	if err != nil {
		return false, err
	}
	return l.allows(u, perm), nil
}

func (l list) allows(u User, perm uint16) bool {
	if u.UID == 0 {
		return true
	}
	mask, grouped := l.mask(), false
	for _, e := range l.normal() { // the owner's entry is the first, then users', then groups'
		switch {
		case e.tag == tagOwner && u.UID == l.uid:
			return e.perm&perm == perm
		case e.tag == tagUser && e.id == u.UID:
			return e.perm&mask&perm == perm
		case e.tag == tagGroup && slices.Contains(u.Groups, l.gid), e.tag == tagGroups && slices.Contains(u.Groups, e.id):
			if grouped = true; e.perm&mask&perm == perm {
				return true
			}
		case e.tag == tagOther:
			return !grouped && e.perm&perm == perm
		}
	}
	return false
}
