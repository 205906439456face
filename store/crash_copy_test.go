package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// copyRun is a child of TestCrashCopies with its journal.
type copyRun struct {
	cmd     *exec.Cmd
	journal *os.File
	lines   *bufio.Reader
	part    []byte // of a line whose end is not written yet
	out     bytes.Buffer
	m       *crashModel
}

func startCopyRun(t *testing.T, o *crashOrder, m *crashModel) *copyRun {
	t.Helper()
	name := filepath.Join(t.TempDir(), "journal")
	written, err := os.Create(name)
	require.NoError(t, err)
	defer written.Close()
	r := &copyRun{m: m}
	r.journal, err = os.Open(name)
	require.NoError(t, err)
	r.lines = bufio.NewReader(r.journal)
	o.Have = m.have()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	r.cmd = exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	r.cmd.Env = append(os.Environ(), crashChildEnv+"="+string(text))
	r.cmd.ExtraFiles = []*os.File{written}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// read adds to the model what the child has written so far. A last line without an end is kept for later.
func (r *copyRun) read(t *testing.T) {
	t.Helper()
	for {
		line, err := r.lines.ReadBytes('\n')
		r.part = append(r.part, line...)
		if err != nil {
			return
		}
		var e crashEntry
		require.NoError(t, json.Unmarshal(r.part, &e))
		r.part = nil
		if e.ID < 0 {
			t.Fatalf("the child found: %s", e.Err)
		}
		r.m.add(e)
	}
}

func (r *copyRun) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Kill())
	_ = r.cmd.Wait()
	r.read(t)
	require.NoError(t, r.journal.Close())
	require.Empty(t, r.out.String(), "the child said")
}

// copyTo copies the child's directory as it is at one moment, with what is true of it.
func (r *copyRun) copyTo(t *testing.T, from, to string) *crashModel {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	for { // until all threads stand still
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(r.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		require.NoError(t, err)
		require.Equal(t, r.cmd.Process.Pid, pid)
		require.True(t, status.Stopped(), "the child ended: %v %s", status, &r.out)
		break
	}
	r.read(t)
	copyDir(t, from, to)
	m := r.m.clone()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
	return m
}

func (m *crashModel) clone() *crashModel {
	c := newCrashModel()
	for name, k := range m.keys {
		copied := *k
		copied.maybe, copied.older = slices.Clone(k.maybe), slices.Clone(k.older)
		c.keys[name] = &copied
	}
	c.pending = maps.Clone(m.pending)
	return c
}

// TestCrashCopies copies the directory of a running process at a random moment, opens the copy while that runs on, lets a
// process work on each, kills both and opens both, at once and in turns: each side has what was true of it.
func TestCrashCopies(t *testing.T) {
	needRocksDB(t)
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	rounds := max(2, *crashRounds/20)
	if testing.Short() {
		rounds = 2
	}
	rng := rand.New(rand.NewPCG(seed, 9))
	o := crashOrder{Dir: filepath.Join(t.TempDir(), "one"), Shm: crashShmDir(t), Boot: "boot"}
	m := newCrashModel()
	pause := func() { time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond) } // when, not whether
	for i := range rounds {
		t.Logf("seed %d round %d", seed, i)
		copied := o
		copied.Dir = filepath.Join(t.TempDir(), fmt.Sprint("copy", i))
		o.Seed, o.Ver = seed+uint64(i), o.Ver+1_000_000
		copied.Seed, copied.Ver = o.Seed+7, o.Ver+500_000
		require.NoError(t, os.MkdirAll(o.Dir, 0o700))
		one := startCopyRun(t, &o, m)
		pause()
		cm := one.copyTo(t, o.Dir, copied.Dir)
		open := func(o *crashOrder) *Store {
			s, err := openWith(context.Background(), o.options(), seams{bootID: o.Boot})
			require.NoError(t, err, "seed %d round %d", seed, i)
			return s
		}
		s := open(&copied)
		cm.checkAll(t, s, crashReboot)
		require.NoError(t, s.Close())
		two := startCopyRun(t, &copied, cm)
		pause()
		two.kill(t)
		pause()
		one.kill(t)
		orders, models := []*crashOrder{&o, &copied}, []*crashModel{m, cm}
		if rng.IntN(2) == 0 {
			slices.Reverse(orders)
			slices.Reverse(models)
		}
		var stores []*Store
		for j := range orders {
			stores = append(stores, open(orders[j]))
			models[j].checkAll(t, stores[j], crashKill)
		}
		for j, s := range stores {
			require.NoError(t, s.Close())
			s = open(orders[j])
			models[j].checkAll(t, s, crashKill)
			require.NoError(t, s.Close())
		}
	}
}
