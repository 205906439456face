package arena

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// MemLimits is what the machine lets this process take. Shared memory taken beyond a cgroup's limit is no error but a
// SIGKILL, so the limits are looked up before: those of the process's cgroup and all its ancestors (v1 and v2),
// MemAvailable, and the free space of the file system. A limit that can't be read is taken for none.
//
// A check reserves nothing: others may take the memory right after. So large amounts are checked again step by step.
// The zero value is the real machine.
type MemLimits struct {
	// Root is the directory that holds proc and sys. Default: "/".
	Root string
	// Headroom is kept free in every memory limit; negative is none. Default: 64 MiB.
	Headroom int64
	// FileSystemFree tells the free bytes of the file system of fd, and whether it has a bound. Default: fstatfs.
	FileSystemFree func(fd int) (free int64, bounded bool, err error)
	// Mappings is how many files one FileSet keeps mapped. Default: an eighth of vm.max_map_count, for all sets of the
	// process together.
	Mappings int64
}

const defaultHeadroom = 64 << 20

// Check returns an error wrapping ErrLimit, which names the limit, what was wanted and what is available, unless n
// more bytes may be taken.
func (l MemLimits) Check(n int64) error {
	available, limit := l.Available()
	if available = max(available, 0); n > available {
		return errors.Wrapf(ErrLimit, "need %d bytes of memory, %s leaves %d", n, limit, available)
	}
	return nil
}

// CheckFile is Check for n bytes of a file on tmpfs, whose own size is a limit too.
func (l MemLimits) CheckFile(fd int, n int64) error {
	if err := l.Check(n); err != nil {
		return err
	}
	fileSystemFree := l.FileSystemFree
	if fileSystemFree == nil {
		fileSystemFree = statfsFree
	}
	free, bounded, err := fileSystemFree(fd)
	if err != nil {
		return errors.Wrap(err, "free space of the file system")
	}
	if bounded && n > free {
		return errors.Wrapf(ErrLimit, "need %d bytes, the file system has %d free", n, free)
	}
	return nil
}

// Available returns how many bytes may be taken, less the headroom, and the name of the limit that is the lowest.
func (l MemLimits) Available() (n int64, limit string) {
	n, limit = math.MaxInt64, "nothing"
	lower := func(free int64, name string) {
		if free < n {
			n, limit = free, name
		}
	}
	if free, ok := l.fields("proc/meminfo")["MemAvailable:"]; ok {
		lower(free<<10, "MemAvailable")
	}
	for _, g := range l.groups() {
		g.available(l, lower)
	}
	if n == math.MaxInt64 {
		return n, limit
	}
	switch {
	case l.Headroom == 0:
		n -= defaultHeadroom
	case l.Headroom > 0:
		n -= l.Headroom
	}
	return n, limit
}

// Free returns how many bytes of a file on tmpfs may be taken.
func (l MemLimits) Free(fd int) int64 {
	n, _ := l.Available()
	fileSystemFree := l.FileSystemFree
	if fileSystemFree == nil {
		fileSystemFree = statfsFree
	}
	if free, bounded, err := fileSystemFree(fd); err == nil && bounded {
		n = min(n, free)
	}
	return max(n, 0)
}

// IsShortage reports whether an error says that the machine has not got the memory, unlike a limit on descriptors, sizes
// or addresses: other memory that is given back helps.
func IsShortage(err error) bool {
	var limit *limitReached
	return errors.Is(err, ErrLimit) && (!errors.As(err, &limit) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT))
}

// FileSystemBytes returns the size of the file system of a directory, 0 if it has none or does not say.
func FileSystemBytes(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Blocks) * st.Bsize
}

func statfsFree(fd int) (int64, bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return 0, false, err
	}
	// A tmpfs without a size, such as the one behind memfd, shows no blocks at all.
	return int64(st.Bavail) * st.Bsize, st.Blocks != 0, nil
}

// group is this process's place in one memory hierarchy: the directory where it is mounted and the path below.
type group struct {
	version2  bool
	mount, in string
}

// available reports what the group and each of its ancestors leaves.
func (g group) available(l MemLimits, lower func(free int64, name string)) {
	for in := g.in; ; in = filepath.Dir(in) {
		dir := filepath.Join(g.mount, in)
		stat := l.fields(filepath.Join(dir, "memory.stat"))
		if g.version2 {
			cache := stat["inactive_file"] + stat["active_file"]/2
			if used, ok := l.number(filepath.Join(dir, "memory.current")); ok {
				for _, name := range []string{"memory.max", "memory.high"} {
					if limit, ok := l.number(filepath.Join(dir, name)); ok {
						lower(limit-used+min(cache, used), name+" of cgroup "+in)
					}
				}
			}
		} else {
			cache := stat["total_inactive_file"] + stat["total_active_file"]/2
			limit, ok1 := l.number(filepath.Join(dir, "memory.limit_in_bytes"))
			used, ok2 := l.number(filepath.Join(dir, "memory.usage_in_bytes"))
			if ok1 && ok2 && limit < math.MaxInt64/2 { // v1 writes "no limit" as a huge number
				lower(limit-used+min(cache, used), "memory.limit_in_bytes of cgroup "+in)
			}
		}
		if in == "/" || in == "." {
			return
		}
	}
}

// groups finds the memory cgroups of this process: its path in each hierarchy is in /proc/self/cgroup, where that
// is mounted in /proc/self/mountinfo. A container may see only a subtree mounted; then the path is relative to it.
func (l MemLimits) groups() (gs []group) {
	v1, v2 := "", ""
	for line := range l.lines("proc/self/cgroup") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			v2 = f[2]
		} else if hasWord(f[1], "memory") {
			v1 = f[2]
		}
	}
	for line := range l.lines("proc/self/mountinfo") {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		switch {
		case r[0] == "cgroup2" && v2 != "":
			gs = append(gs, group{true, l[4], below(v2, l[3])})
		case r[0] == "cgroup" && v1 != "" && hasWord(r[2], "memory"):
			gs = append(gs, group{false, l[4], below(v1, l[3])})
		}
	}
	return gs
}

// sharedHugePages reports whether the kernel may give huge pages to shared memory that asks for them.
func (l MemLimits) sharedHugePages() bool {
	mode := string(l.read("sys/kernel/mm/transparent_hugepage/shmem_enabled"))
	return mode != "" && !strings.Contains(mode, "[never]") && !strings.Contains(mode, "[deny]")
}

// below returns path as seen from the mounted subtree root, "/" if it lies outside.
func below(path, root string) string {
	rel, err := filepath.Rel(root, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "/"
	}
	return filepath.Join("/", rel)
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

func (l MemLimits) read(path string) []byte {
	root := l.Root
	if root == "" {
		root = "/"
	}
	p, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return nil
	}
	return p
}

func (l MemLimits) lines(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for sc := bufio.NewScanner(bytes.NewReader(l.read(path))); sc.Scan(); {
			if !yield(sc.Text()) {
				return
			}
		}
	}
}

// fields returns the numbers of a file of lines "name number ...".
func (l MemLimits) fields(path string) map[string]int64 {
	m := map[string]int64{}
	for line := range l.lines(path) {
		if f := strings.Fields(line); len(f) >= 2 {
			if v, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				m[f[0]] = v
			}
		}
	}
	return m
}

// number returns the one number a file holds; "max" and anything else is none.
func (l MemLimits) number(path string) (int64, bool) {
	v, err := strconv.ParseInt(strings.TrimSpace(string(l.read(path))), 10, 64)
	return v, err == nil
}
