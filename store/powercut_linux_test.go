//go:build cgo && !norocksdb

package store

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const powerCutChild = "STORE_TEST_POWER_CUT"

// TestPowerCutChild is the process of TestPowerCut: it changes durable objects for ever and prints what it was told.
func TestPowerCutChild(t *testing.T) {
	dir := os.Getenv(powerCutChild)
	if dir == "" {
		t.Skip("a part of TestPowerCut")
	}
	ctx, opts := context.Background(), crashOptions()
	opts.Dir, opts.VolatileMemory = dir, true
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i%20)
		fmt.Println("begin", key)
		switch {
		case i%7 == 6:
			if err = s.Remove(key, true); err == nil {
				fmt.Println("removed", key)
			}
		default:
			group := fmt.Sprint("g", key) // an object does not change its group
			if err = s.Upsert(ctx, key, random(3000+i), &PutOptions{Durable: true, HardPin: i%2 == 0, Group: group}); err == nil {
				fmt.Println("put", key, i)
			}
			_ = s.Put(ctx, fmt.Sprint("cache", i), random(9000), nil)
		}
		require.True(t, err == nil || i%7 == 6, "%v", err)
	}
}

// TestPowerCut cuts the power of a real file system: ext4 on a loop device, whose backing file is copied while the process
// stands still. What ext4 had not written by then is lost. What was acknowledged as durable is there, with its group.
func TestPowerCut(t *testing.T) {
	work, rng := t.TempDir(), rand.New(rand.NewPCG(rand.Uint64(), 0))
	image, cut, mount := filepath.Join(work, "image"), filepath.Join(work, "cut"), filepath.Join(work, "mount")
	require.NoError(t, os.Mkdir(mount, 0o700))
	run := func(args ...string) error {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return err
	}
	require.NoError(t, run("truncate", "-s", "64M", image))
	for _, step := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, mount}} {
		if err := run(step...); err != nil {
			t.Skip("no loop device here: ", err)
		}
	}
	require.NoError(t, run("umount", mount))
	t.Cleanup(func() { _ = syscall.Unmount(mount, syscall.MNT_DETACH) }) // after a failure
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		require.NoError(t, run("mkfs.ext4", "-q", "-F", image))
		require.NoError(t, run("mount", "-o", "loop", image, mount))
		told := powerCutAfter(t, filepath.Join(mount, "d"), 20+rng.IntN(300), func() { require.NoError(t, run("cp", image, cut)) })
		require.NoError(t, run("umount", mount))
		require.NoError(t, run("mount", "-o", "loop", cut, mount))
		checkTold(t, filepath.Join(mount, "d"), told)
		require.NoError(t, run("umount", mount))
	}
}

// powerCutAfter stops a child after so many lines, cuts, and returns what it was told of each key that it was not at work on.
func powerCutAfter(t *testing.T, dir string, lines int, cut func()) map[string]string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPowerCutChild$")
	cmd.Env = append(os.Environ(), powerCutChild+"="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	told := map[string]string{}
	for scan := bufio.NewScanner(out); scan.Scan(); lines-- {
		what, rest, _ := strings.Cut(scan.Text(), " ")
		key, version, _ := strings.Cut(rest, " ")
		switch what {
		case "begin":
			delete(told, key)
		case "put", "removed":
			told[key] = version
		default:
			require.Fail(t, "the child ended", scan.Text())
		}
		if lines == 0 {
			require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
			cut()
			require.NoError(t, cmd.Process.Kill())
		}
	}
	require.Error(t, cmd.Wait())
	return told
}

// checkTold checks what was told before the cut. Lines that were read after it tell nothing.
func checkTold(t *testing.T, dir string, told map[string]string) {
	t.Helper()
	opts := crashOptions()
	opts.Dir, opts.VolatileMemory = dir, true
	s, err := Open(context.Background(), opts)
	require.NoError(t, err)
	for key, version := range told {
		if version == "" {
			wantAbsent(t, s, key)
			continue
		}
		var i int
		_, err := fmt.Sscan(version, &i)
		require.NoError(t, err)
		wantWhole(t, s, key, random(3000+i))
		info, err := s.Stat(key)
		require.NoError(t, err)
		require.Equal(t, "g"+key, info.Group)
		require.Equal(t, i%2 == 0 || info.HardPin, info.HardPin) // a pin is inherited
		require.True(t, info.Durable)
	}
	require.NoError(t, s.Close())
}
