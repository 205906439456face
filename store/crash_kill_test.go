package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var crashRounds = flag.Int("crash-rounds", 200, "rounds of the crash tests")

var crashSeed = flag.Uint64("crash-seed", 0, "seed of the crash tests, 0 for a random one")

// crashChildEnv makes TestCrashChild the process that is killed.
const crashChildEnv = "MOONCAKE_CRASH_CHILD"

// crashOrder is what the child is told.
type crashOrder struct {
	Dir, Shm, Boot string
	Seed           uint64
	Ver            uint32
	Offload        Offload
	Have           map[string]crashEffect
}

// TestCrashChild is not a test but the child of TestCrash.
func TestCrashChild(t *testing.T) {
	text := os.Getenv(crashChildEnv)
	if text == "" {
		t.Skip("the child of TestCrash")
	}
	var order crashOrder
	require.NoError(t, json.Unmarshal([]byte(text), &order))
	out := os.NewFile(3, "journal")
	enc := json.NewEncoder(out)
	j := &crashJournal{write: func(e crashEntry) {
		if enc.Encode(e) != nil {
			os.Exit(1)
		}
	}}
	s, err := openWith(context.Background(), order.options(), seams{bootID: order.Boot})
	require.NoError(t, err)
	var wg sync.WaitGroup
	workers := order.workers(s, j)
	for _, w := range workers {
		w.trusted = true
		wg.Go(func() {
			w.run()
			_ = enc.Encode(crashEntry{ID: -1, Err: w.err.Error()})
			os.Exit(1)
		})
	}
	wg.Wait()
}

func (o *crashOrder) options() Options {
	opts := crashOptions()
	opts.Dir, opts.ShmDir, opts.Offload = o.Dir, o.Shm, o.Offload
	return opts
}

func (o *crashOrder) workers(s *Store, j *crashJournal) (ws []*crashWorker) {
	for _, name := range []string{"a", "b", "c"} {
		w := newCrashWorker(s, j, o.Seed, name)
		w.adopt(o.Have, o.Ver)
		ws = append(ws, w)
	}
	return ws
}

// TestCrash kills a process with SIGKILL at a random moment, opens its directory again, with shared memory or without,
// and compares with what the process had been told. Replay with -crash-seed; the moment differs.
func TestCrash(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	rounds := *crashRounds
	if testing.Short() {
		rounds /= 10
	}
	const chains = 2
	for i := range chains {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for done := 0; done < rounds/chains; done += crashChain {
				crashChainOf(t, seed+uint64(i*rounds+done), min(crashChain, rounds/chains-done))
			}
		})
	}
}

// crashChain is how many crashes one directory lives through.
const crashChain = 10

func crashChainOf(t *testing.T, seed uint64, rounds int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	dir, err := os.MkdirTemp(t.TempDir(), "")
	require.NoError(t, err)
	o := crashOrder{Dir: dir, Shm: crashShmDir(t), Boot: "boot", Offload: Offload(rng.IntN(2))}
	defer func() { _ = os.RemoveAll(o.Shm) }()
	m := newCrashModel()
	for i := range rounds {
		o.Seed, o.Ver = seed+uint64(i), o.Ver+1_000_000
		how := rng.IntN(2) // crashKill or crashReboot
		t.Logf("seed %d round %d: %d", seed, i, how)
		delay := time.Duration(rng.IntN(250)) * time.Millisecond
		if rng.IntN(5) == 0 {
			delay = time.Duration(rng.IntN(60)) * time.Millisecond // while it opens
		}
		crashChildUntil(t, &o, m, delay)
		if how == crashReboot {
			o.Boot = fmt.Sprintf("boot-%d-%d", seed, i)
			crashEmptyDir(t, o.Shm)
		}
		s, err := openWith(context.Background(), o.options(), seams{bootID: o.Boot})
		require.NoError(t, err)
		m.checkAll(t, s, how)
		if i%3 == 2 {
			m.fill(t, s)
		}
		if i == rounds-1 {
			m.empty(t, s)
		}
		o.Have = m.have()
		require.NoError(t, s.Close())
	}
}

func (m *crashModel) have() map[string]crashEffect {
	have := map[string]crashEffect{}
	for name, k := range m.keys {
		if k.cur != nil {
			have[name] = *k.cur
		}
	}
	return have
}

func crashEmptyDir(t *testing.T, dir string) {
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, name := range left {
		require.NoError(t, os.RemoveAll(name))
	}
}

// crashChildUntil runs a child, kills it and reads its journal.
func crashChildUntil(t *testing.T, o *crashOrder, m *crashModel, delay time.Duration) {
	t.Helper()
	journal, err := os.Create(filepath.Join(o.Dir, "..", "journal"))
	require.NoError(t, err)
	defer func() { require.NoError(t, journal.Close()) }()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), crashChildEnv+"="+string(text))
	cmd.ExtraFiles = []*os.File{journal}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	died := make(chan error, 1)
	go func() { died <- cmd.Wait() }()
	select {
	case <-time.After(delay):
		require.NoError(t, cmd.Process.Kill())
		<-died
	case <-died:
	}
	_, err = journal.Seek(0, 0)
	require.NoError(t, err)
	lines := bufio.NewReader(journal)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // a last line without an end was never written whole
		}
		var e crashEntry
		require.NoError(t, json.Unmarshal(line, &e))
		if e.ID < 0 {
			t.Fatalf("the child found: %s", e.Err)
		}
		m.add(e)
	}
	require.Empty(t, out.String(), "the child said")
}
