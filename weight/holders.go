package weight

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockHolders finds the processes that have a lock file open, in /proc: the kernel's list of locks names only the one
// that took it, which an engine that inherited the descriptor has outlived. What can't be looked at is left out.
func (m *Manager) lockHolders(path string) (out []Holder) {
	var want unix.Stat_t
	if unix.Stat(path, &want) != nil {
		return []Holder{{Command: "a process that has just ended"}}
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && hasOpen(pid, &want) {
			out = append(out, Holder{PID: pid, Command: commandOf(pid)})
		}
	}
	slices.SortFunc(out, func(a, b Holder) int { return a.PID - b.PID })
	if len(out) == 0 {
		out = []Holder{{Command: "a process of another user"}}
	}
	return out
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
