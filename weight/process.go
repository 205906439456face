package weight

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// processID names a process for as long as it lives, whatever program it turns into. A pid alone is given anew.
type processID struct {
	PID       int    `json:"pid"`
	Start     uint64 `json:"start"`     // ticks since the boot, field 22 of /proc/PID/stat
	Boot      string `json:"boot"`      // the boot's id
	Namespace string `json:"namespace"` // that PID counts in
	Program   string `json:"program"`   // random, of the program that noted it; exec makes another one
}

// thisProgram is another value in each program, also when one turns into the next by exec.
var thisProgram = sync.OnceValue(func() string { return rand.Text() })

func bootID() string {
	p, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(p))
}

func namespaceOf(pid string) string {
	link, _ := os.Readlink("/proc/" + pid + "/ns/pid")
	return link
}

// thisProcess fails where /proc says too little.
func thisProcess() (processID, error) {
	st, ok := statOf(os.Getpid())
	p := processID{PID: os.Getpid(), Start: st.start, Boot: bootID(), Namespace: namespaceOf("self"), Program: thisProgram()}
	if !ok || p.Boot == "" || p.Namespace == "" {
		return p, fmt.Errorf("/proc does not tell who this process is")
	}
	return p, nil
}

// procStat is what we need of /proc/PID/stat.
type procStat struct {
	start uint64
	dead  bool
}

func statOf(pid int) (st procStat, ok bool) {
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return st, false
	}
	_, after, _ := strings.Cut(string(p[bytes.LastIndexByte(p, ')')+1:]), " ") // the command may hold anything
	fields := strings.Fields(after)
	if len(fields) < 20 {
		return st, false
	}
	st.start, err = strconv.ParseUint(fields[19], 10, 64)
	threads := fields[17] // those of a zombie may go on without the first
	st.dead = fields[0] == "X" || fields[0] == "Z" && (threads == "0" || threads == "1")
	return st, err == nil
}

// find returns the pid that the process has here, 0 if it has ended. One of another pid namespace is found if that is
// below ours, as a container's is below the host's; else nothing can be known of it, and it counts as ended: a
// restarted container would find its revision in use until the machine's next boot otherwise.
func (p processID) find() int {
	if p.Boot != bootID() {
		return 0
	}
	is := func(pid int) bool {
		st, ok := statOf(pid)
		return ok && !st.dead && st.start == p.Start
	}
	if p.Namespace == namespaceOf("self") {
		if is(p.PID) {
			return p.PID
		}
		return 0
	}
	for _, pid := range processes() {
		if namespaceOf(strconv.Itoa(pid)) == p.Namespace && innerPID(pid) == p.PID && is(pid) {
			return pid
		}
	}
	return 0
}

// innerPID is the pid that a process has in its own namespace.
func innerPID(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if list, ok := strings.CutPrefix(line, "NSpid:"); ok {
			all := strings.Fields(list)
			inner, _ := strconv.Atoi(all[len(all)-1])
			return inner
		}
	}
	return 0
}

func processes() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// fileID is a file's place in the machine.
type fileID struct{ dev, ino uint64 }

// treeFiles is what a process may have open of a directory: names, and in another mount namespace, where names differ,
// the files themselves.
type treeFiles struct {
	root  string
	names map[string]bool // what symbolic links in it lead to
	ids   map[fileID]bool
}

func filesOf(root string) treeFiles {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real // as /proc has it
	}
	t := treeFiles{root: root, names: make(map[string]bool), ids: make(map[fileID]bool)}
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			t.names[target] = true
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			t.ids[fileID{st.Dev, st.Ino}] = true
		}
		return nil
	})
	return t
}

// users are the other processes that have a file of the directory mapped or open, or work in it. Another user's can't
// be looked at, except by root.
func (t treeFiles) users() (pids []int) {
	if len(t.ids) == 0 {
		return nil
	}
	self := os.Getpid()
	mounts, _ := os.Readlink("/proc/self/ns/mnt")
	for _, pid := range processes() {
		if pid == self {
			continue
		}
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err == nil && (t.mapped(pid, theirs != mounts) || t.opened(pid, theirs != mounts)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (t treeFiles) has(path string) bool {
	path = strings.TrimSuffix(path, " (deleted)")
	rest, ok := strings.CutPrefix(path, t.root)
	return ok && (rest == "" || rest[0] == '/') || t.names[path]
}

// mapped looks through /proc/PID/maps: range, rights, offset, device, inode, path.
func (t treeFiles) mapped(pid int, byID bool) bool {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	for line := range bytes.Lines(maps) {
		f := bytes.SplitN(bytes.TrimRight(line, "\n"), []byte(" "), 6)
		if len(f) < 6 || len(f[4]) == 1 && f[4][0] == '0' { // anonymous
			continue
		}
		if t.has(string(bytes.TrimLeft(f[5], " "))) {
			return true
		}
		if byID {
			major, minor, _ := strings.Cut(string(f[3]), ":")
			a, _ := strconv.ParseUint(major, 16, 32)
			b, _ := strconv.ParseUint(minor, 16, 32)
			ino, _ := strconv.ParseUint(string(f[4]), 10, 64)
			if t.ids[fileID{unix.Mkdev(uint32(a), uint32(b)), ino}] {
				return true
			}
		}
	}
	return false
}

func (t treeFiles) opened(pid int, byID bool) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(append(links, fmt.Sprintf("/proc/%d/cwd", pid)), func(link string) bool {
		path, err := os.Readlink(link)
		if err != nil || path == "" || path[0] != '/' {
			return false
		}
		var st unix.Stat_t
		return t.has(path) || byID && unix.Stat(link, &st) == nil && t.ids[fileID{st.Dev, st.Ino}]
	})
}
