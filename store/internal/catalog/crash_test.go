//go:build cgo && !norocksdb

package catalog_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
	"github.com/stretchr/testify/require"
)

// childEnv tells this test binary to be a child process that does one thing to a directory.
const childEnv = "CATALOG_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		child(what, os.Args[len(os.Args)-1])
	}
	os.Exit(m.Run())
}

// child runs in a process of its own and does not return.
func child(what, dir string) {
	c, err := catalog.Open(dir)
	if what == "open" { // and report the error
		fmt.Printf("%v\n", err)
		os.Exit(0)
	}
	for i := 0; err == nil; i++ { // until killed
		err = c.Apply(numbered(i), false)
		fmt.Println(i)
	}
	fmt.Println(err)
	os.Exit(1)
}

// numbered is the i-th batch of a history: some new records, and generation i of a key that all batches write and of
// which each forgets the generation before.
func numbered(i int) *catalog.Batch {
	var b catalog.Batch
	b.Put(&catalog.Record{Key: "last", Gen: uint64(i)})
	if i > 0 {
		b.Delete("", "last", uint64(i-1))
	}
	for j := range 10 {
		r := catalog.Record{Tenant: "t", Key: fmt.Sprintf("%d-%d", i, j), Gen: uint64(i), Group: strings.Repeat("g", 100)}
		r.Flags, r.Target = catalog.FlagLink, r.Key+" target"
		b.Put(&r)
	}
	return &b
}

// checkPrefix checks that c holds a prefix of the history, and returns its number of batches.
func checkPrefix(t *testing.T, c catalog.Catalog) int {
	t.Helper()
	all := catalogtest.All(t, c)
	if len(all) == 0 {
		return 0
	}
	var last []uint64
	for id := range all {
		if id.Key == "last" {
			last = append(last, id.Gen)
		}
	}
	require.Len(t, last, 1, "generations of the key that each batch writes")
	n := int(last[0]) + 1
	require.Len(t, all, 1+10*n, "not a prefix of the history")
	for i := range n {
		for j := range 10 {
			key := fmt.Sprintf("%d-%d", i, j)
			if r := all[catalogtest.ID{Tenant: "t", Key: key, Gen: uint64(i)}]; r.Target != key+" target" {
				t.Fatalf("record %d of batch %d is missing or has target %q, %d batches were found", j, i, r.Target, n)
			}
		}
	}
	return n
}

func command(what, dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^$", dir)
	cmd.Env = append(os.Environ(), childEnv+"="+what, "GORACE=atexit_sleep_ms=0") // else -race exits a second late
	return cmd
}

// TestKill kills a process that writes without sync: all that Apply reported is there.
func TestKill(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 4 {
		dir := t.TempDir()
		cmd := command("write", dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		reported, stop := -1, rng.IntN(1500)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			n, err := strconv.Atoi(lines.Text())
			require.NoError(t, err, lines.Text())
			if reported = n; n == stop {
				require.NoError(t, cmd.Process.Kill())
			}
		}
		require.Error(t, cmd.Wait())
		require.GreaterOrEqual(t, reported, stop)

		c, err := catalog.Open(dir)
		require.NoError(t, err)
		n := checkPrefix(t, c)
		require.GreaterOrEqual(t, n, reported+1, "batches reported before the kill are lost")
		require.NoError(t, c.Apply(numbered(n), true))
		require.Equal(t, n+1, checkPrefix(t, c))
		require.NoError(t, c.Close())
	}
}

// TestTornLog damages the newest log of a process that died from a random offset on, as a machine that lost its power does:
// what was not synced may be cut off anywhere, damage of what was synced is told.
func TestTornLog(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const synced, history = 80, 200
	master, killed := t.TempDir(), filepath.Join(t.TempDir(), "killed")
	c, err := catalog.Open(master)
	require.NoError(t, err)
	var syncedBytes int
	for i := range history {
		require.NoError(t, c.Apply(numbered(i), i == synced-1))
		if i == synced-1 {
			syncedBytes = logBytes(t, newestLog(t, master))
		}
	}
	require.NoError(t, os.CopyFS(killed, os.DirFS(master)))
	require.NoError(t, c.Close())

	partial, refused := 0, 0
	for round := range 40 {
		dir := filepath.Join(t.TempDir(), "c")
		require.NoError(t, os.CopyFS(dir, os.DirFS(killed)))
		log := newestLog(t, dir)
		p, err := os.ReadFile(log)
		require.NoError(t, err)
		p = p[:logBytes(t, log)]
		at := rng.IntN(len(p))
		switch round % 4 {
		case 0:
			p = p[:at]
		case 1: // pages that never reached the disk
			clear(p[at:])
		case 2: // pages of something else
			for i := range p[at:] {
				p[at+i] = byte(rng.Uint32())
			}
		case 3: // one flipped bit
			p[at] ^= 1 << rng.IntN(8)
		}
		require.NoError(t, os.WriteFile(log, p, 0o600))

		before := files(t, dir)
		c, err := catalog.Open(dir)
		if at < syncedBytes {
			require.ErrorIs(t, err, catalog.ErrCorrupt, "seed %d round %d: log damaged at %d, %d were synced", seed, round, at, syncedBytes)
			require.ErrorContains(t, err, filepath.Base(log))
			require.Equal(t, before, files(t, dir), "Open of a damaged directory wrote to it")
			refused++
			continue
		}
		require.NoError(t, err, "seed %d round %d: log cut at %d of %d", seed, round, at, len(p))
		n := checkPrefix(t, c)
		require.GreaterOrEqual(t, n, synced, "seed %d round %d", seed, round)
		if n < history {
			partial++
		}
		require.NoError(t, c.Apply(numbered(n), true))
		require.NoError(t, c.Close())
		c, err = catalog.Open(dir)
		require.NoError(t, err)
		require.Equal(t, n+1, checkPrefix(t, c))
		require.NoError(t, c.Close())
	}
	require.Greater(t, partial, 3, "the damage did not reach the records")
	require.Greater(t, refused, 3, "the damage did not reach what was synced")
}

// logBytes is how much of a log is written: behind it is space that was taken in advance.
func logBytes(t *testing.T, path string) int {
	t.Helper()
	fi, err := os.Stat(path)
	require.NoError(t, err)
	return int(fi.Size())
}

// files maps the names in dir to their contents.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		p, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		all[e.Name()] = string(p)
	}
	return all
}

func newestLog(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	return slices.Max(logs)
}

func TestLockedByAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	c, err := catalog.Open(dir)
	require.NoError(t, err)
	defer c.Close()
	out, err := command("open", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), catalog.ErrLocked.Error())
}

// TestReadOnlyDirectory opens directories that the process may read but not write, which root always may.
func TestReadOnlyDirectory(t *testing.T) {
	base, err := os.MkdirTemp("", "catalog") // t.TempDir is below a directory that only its owner may enter
	require.NoError(t, err)
	defer os.RemoveAll(base)
	require.NoError(t, os.Chmod(base, 0o755))
	full, empty := filepath.Join(base, "full"), filepath.Join(base, "empty")
	c, err := catalog.Open(full)
	require.NoError(t, err)
	require.NoError(t, c.Apply(numbered(0), true))
	require.NoError(t, c.Close())
	require.NoError(t, os.Mkdir(empty, 0o755))

	exe := filepath.Join(base, "test")
	copyFile(t, exe, os.Args[0])
	for _, dir := range []string{full, empty, filepath.Join(empty, "missing")} {
		cmd := command("open", dir)
		cmd.Path = exe
		cmd.Dir = base
		if os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		} else {
			require.NoError(t, os.Chmod(full, 0o555))
			require.NoError(t, os.Chmod(empty, 0o555))
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "permission denied", dir)
		require.Contains(t, string(out), dir)
	}
	entries, err := os.ReadDir(empty)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func copyFile(t *testing.T, dst, src string) {
	t.Helper()
	in, err := os.Open(src)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}

// TestOpenCloseLeaksNothing counts descriptors, threads and memory over many lives of a catalogue.
func TestOpenCloseLeaksNothing(t *testing.T) {
	dir := t.TempDir()
	cycle := func(i int) {
		c, err := catalog.Open(dir)
		require.NoError(t, err)
		require.NoError(t, c.Apply(numbered(i), false))
		require.Equal(t, i+1, checkPrefix(t, c))
		require.NoError(t, c.Close())
	}
	for i := range 20 {
		cycle(i)
	}
	fds, threads, rss := resources(t)
	for i := range 100 {
		cycle(20 + i)
	}
	fds2, threads2, rss2 := resources(t)
	t.Logf("descriptors %d -> %d, threads %d -> %d, RSS %d -> %d KiB", fds, fds2, threads, threads2, rss, rss2)
	require.LessOrEqual(t, fds2, fds, "descriptors")
	require.LessOrEqual(t, threads2, threads+runtime.GOMAXPROCS(0), "threads") // Go may start one for each P
	require.LessOrEqual(t, rss2, rss+24<<10, "RSS in KiB")                     // 100 leaks of a block cache are 1.6 GiB
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Less(t, len(files), 40, "files in the directory")
}

func resources(t *testing.T) (fds, threads, rssKiB int) {
	t.Helper()
	runtime.GC()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch name {
		case "Threads":
			threads = n
		case "VmRSS":
			rssKiB = n
		}
	}
	return len(entries), threads, rssKiB
}
