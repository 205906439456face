package weight

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// lockHolders finds the processes that have a lock file open, in /proc: the kernel's list of locks names only the one
// that took it, which an engine that inherited the descriptor has outlived. What can't be looked at is left out.
func lockHolders(path string) (pids []int) {
	var want unix.Stat_t
	if unix.Stat(path, &want) != nil {
		return nil
	}
	for _, pid := range processes() {
		if hasOpen(pid, &want) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func hasOpen(pid int, want *unix.Stat_t) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Stat(fd, &st) == nil && st.Ino == want.Ino && st.Dev == want.Dev {
			return true
		}
	}
	return false
}

func commandOf(pid int) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	line, _ := bufio.NewReader(f).Peek(256)
	return strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
}

// inUse is ErrInUse, with who it is, when a revision is loaded here or by an engine.
func (m *Manager) inUse(ref Ref) error {
	if holders := m.holders(ref); len(holders) > 0 {
		return errors.WithMessage(ErrInUse, holderText(holders))
	}
	return nil
}

// holders are the processes that have a revision loaded.
func (m *Manager) holders(ref Ref) (out []Holder) {
	m.mu.Lock()
	d := m.mu.loads[ref]
	m.mu.Unlock()
	if d == nil {
		out = append(m.usersAt(m.directoryPath(ref)), m.usersAt(m.oldPath(ref))...)
		if len(out) == 0 {
			_ = m.endLinger(ref)
		}
		return out
	}
	self := os.Getpid()
	out = holdersAt(d.path)
	if !slices.ContainsFunc(out, func(h Holder) bool { return h.PID == self }) { // it is just being made here
		out = append(out, Holder{PID: self, Command: commandOf(self)})
	}
	return out
}

// usersAt are the processes that use a directory. One that nobody uses is removed.
func (m *Manager) usersAt(path string) []Holder {
	for range 2 {
		if m.removeUnused(path) {
			return nil
		}
		if out := holdersAt(path); len(out) > 0 {
			return out
		}
		// It has just ended, or can't be looked at.
	}
	return []Holder{{Command: "a process of another user"}}
}

// holdersAt are the processes that use the directory at path, as far as they can be looked at.
func holdersAt(path string) (out []Holder) {
	pids := append(lockHolders(path+lockSuffix), readLockAt(path).living()...)
	pids = append(pids, filesOf(path).users()...)
	slices.Sort(pids)
	for _, pid := range slices.Compact(pids) {
		out = append(out, Holder{PID: pid, Command: commandOf(pid)})
	}
	return out
}

func holderText(holders []Holder) string {
	var parts []string
	for _, h := range holders {
		if h.PID == 0 {
			parts = append(parts, h.Command)
			continue
		}
		parts = append(parts, fmt.Sprintf("pid %d (%s)", h.PID, h.Command))
	}
	return "used by " + strings.Join(parts, ", ")
}
