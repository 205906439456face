package weight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// crashRefs are the revisions that the crash test works on: a and b share a shard, c is of its own.
var crashRefs = []Ref{{"org/a", "1"}, {"org/a", "2"}, {"c", "1"}}

// crashModels writes what they are imported from.
func crashModels(t *testing.T) (dir string) {
	dir = t.TempDir()
	for i := range crashRefs {
		write := func(name string, p []byte) {
			p2 := filepath.Join(dir, strconv.Itoa(i), name)
			require.NoError(t, os.MkdirAll(filepath.Dir(p2), 0o755))
			require.NoError(t, os.WriteFile(p2, p, 0o644))
		}
		write("a.safetensors", shard(map[string]int{"a": mib + mib/2}, uint64(i/2)))
		write("b.safetensors", shard(map[string]int{"b": mib}, uint64(10+i)))
		write("c.safetensors", shard(map[string]int{"c": 300_000}, uint64(20+i)))
		write("config.json", []byte(`{}`))
		write("vocab.txt", nil)
	}
	return dir
}

// childWork imports, loads, deletes and aborts at random, two at a time, until it is killed.
func childWork(args []string) error {
	dir, src := args[0], args[1]
	seed, _ := strconv.ParseUint(args[2], 10, 64)
	m, _, err := childOpen(dir)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for lane := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, lane))
		go func() {
			for {
				if err := oneOperation(m, src, rng); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

func oneOperation(m *Manager, src string, rng *rand.Rand) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	i := rng.IntN(len(crashRefs))
	r := crashRefs[i]
	var err error
	switch op := rng.IntN(100); {
	case op < 50:
		if rng.IntN(3) == 0 {
			time.AfterFunc(time.Duration(rng.IntN(40))*time.Millisecond, cancel)
		}
		_, err = m.Import(ctx, ImportRequest{Ref: r, Source: filepath.Join(src, strconv.Itoa(i))})
	case op < 70:
		var l *Loaded
		if l, err = m.Load(ctx, r, nil); err == nil {
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
			err = l.Close()
		}
	case op < 88:
		err = m.Delete(ctx, r)
	default:
		err = m.Abort(ctx, r)
	}
	for _, expected := range []error{ErrNotFound, ErrNotReady, ErrInUse, ErrImporting, ErrInvalid, context.Canceled} {
		if errors.Is(err, expected) {
			return nil
		}
	}
	return err
}

// TestCrash kills a process in the middle of its work, again and again. Each time every revision is absent, resumable or
// READY with the right bytes, and what is gone takes no room. WEIGHT_CRASH_ROUNDS is how often, 100 by default.
func TestCrash(t *testing.T) {
	rounds := 100
	if s := os.Getenv("WEIGHT_CRASH_ROUNDS"); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("WEIGHT_CRASH_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("WEIGHT_CRASH_SEED=%d", seed)
	src := crashModels(t)
	const lanes = 2
	for lane := range uint64(lanes) {
		t.Run(fmt.Sprint("lane", lane), func(t *testing.T) {
			t.Parallel()
			c := crashTest{env: newEnv(t, store.Options{Dir: t.TempDir(), MemoryBytes: 32 * mib}), src: src,
				rng: rand.New(rand.NewPCG(seed, lane)), seen: map[string]int{}}
			c.empty = c.live()
			for range (rounds + lanes - 1) / lanes {
				c.round()
			}
			c.clear()
			t.Logf("states after a crash: %v", c.seen)
		})
	}
}

type crashTest struct {
	*env
	src   string
	rng   *rand.Rand
	empty int64 // bytes of an empty SSD tier
	seen  map[string]int
}

func (c *crashTest) live() int64 {
	u, err := c.s.Usage()
	require.NoError(c.t, err)
	return u.SSDLive
}

func (c *crashTest) round() {
	c.close()
	c.killChild()
	c.open()
	c.verify()
	if c.rng.IntN(8) == 0 {
		c.finish()
	} else if c.rng.IntN(8) == 0 {
		c.clear()
	}
}

// killChild lets a child work for a while. It must not end by itself.
func (c *crashTest) killChild() {
	cmd := exec.Command(os.Args[0], c.opts.Dir, c.src, strconv.FormatUint(c.rng.Uint64(), 10))
	cmd.Env = append(os.Environ(), jobEnv+"=work")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(c.t, cmd.Start())
	time.Sleep(20*time.Millisecond + time.Duration(c.rng.IntN(int(250*time.Millisecond))))
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(c.t, status.Signaled() && status.Signal() == syscall.SIGKILL, "the child ended: %v\n%s", status, out.String())
}

// verify checks every revision and that nothing is in the store that belongs to none.
func (c *crashTest) verify() {
	ctx := context.Background()
	prefixes := []string{}
	for _, r := range crashRefs {
		man, err := c.m.Manifest(ctx, r)
		switch {
		case err == nil:
			c.seen["READY"]++
			require.Equal(c.t, Ready, man.Status)
			c.deepOK(r)
			require.NoError(c.t, c.loadOnce(r))
			require.Empty(c.t, keysOf(c.t, c.s, r.receiptPrefix()))
			require.Empty(c.t, keysOf(c.t, c.s, r.recordKey()))
		case errors.Is(err, ErrNotReady):
			c.seen["IMPORTING"]++
			c.verifyUnfinished(r)
		default:
			c.seen["absent"]++
			require.ErrorIs(c.t, err, ErrNotFound)
			require.Empty(c.t, keysOf(c.t, c.s, r.group()+":"), "what is left of %v", r)
			continue
		}
		prefixes = append(prefixes, r.group()+":")
	}
	for _, key := range keysOf(c.t, c.s, "") {
		ok := false
		for _, p := range prefixes {
			ok = ok || strings.HasPrefix(key, p)
		}
		require.True(c.t, ok, "%q belongs to no revision", key)
	}
	require.Empty(c.t, files(c.t, c.m.loadRoot))
	c.verifySpace()
}

// verifyUnfinished makes sure that every receipt stands for a file that is completely there.
func (c *crashTest) verifyUnfinished(r Ref) {
	ctx := context.Background()
	_, err := c.m.Load(ctx, r, nil)
	require.ErrorIs(c.t, err, ErrNotReady)
	for _, key := range keysOf(c.t, c.s, r.receiptPrefix()) {
		name, err := decode(strings.TrimPrefix(key, r.receiptPrefix()))
		require.NoError(c.t, err)
		rec, err := c.m.receipt(ctx, r, name)
		require.NoError(c.t, err)
		f := File{Name: name, Key: r.FileKey(name), Size: rec.Size, SHA256: rec.SHA256}
		require.Empty(c.t, c.m.problem(f), "%q has a receipt", name)
		p, err := c.m.deepProblem(ctx, f, make([]byte, mib))
		require.NoError(c.t, err)
		require.Empty(c.t, p, "%q has a receipt", name)
	}
}

// verifySpace compares the files of the SSD tier with the objects that have one.
func (c *crashTest) verifySpace() {
	var last string
	ok := func() bool {
		// Links share a file; equal shards that were imported side by side have one each.
		owners, objects := map[uint64]bool{}, 0
		for info, err := range c.s.Objects(context.Background(), keyPrefix) {
			require.NoError(c.t, err)
			if info.Type == store.Weight && info.Size >= mib {
				owners[info.Digest] = true
				objects++
			}
		}
		own := ownFiles(c.t, c.opts.Dir)
		last = fmt.Sprintf("%d files of their own for %d objects, %d of them different: %v", len(own), objects, len(owners), own)
		return len(own) >= len(owners) && len(own) <= objects
	}
	for range 3000 { // space goes back in the background, at most seconds later on an idle machine
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.t.Fatal(last)
}

// finish imports everything: what was resumable goes on.
func (c *crashTest) finish() {
	for i, r := range crashRefs {
		_, err := c.m.Import(context.Background(), ImportRequest{Ref: r, Source: filepath.Join(c.src, strconv.Itoa(i))})
		require.NoError(c.t, err)
		c.deepOK(r)
	}
}

// clear removes everything. The store is as empty as it began.
func (c *crashTest) clear() {
	ctx := context.Background()
	list, err := c.m.List(ctx, "")
	require.NoError(c.t, err)
	var all sync.WaitGroup
	for _, s := range list {
		all.Go(func() {
			remove := c.m.Delete
			if s.State == Importing {
				remove = c.m.Abort
			}
			if err := remove(ctx, s.Ref); err != nil {
				c.t.Error(err)
			}
		})
	}
	all.Wait()
	c.nothing()
	require.Eventually(c.t, func() bool { return c.live() == c.empty }, 5*time.Second, 10*time.Millisecond,
		"bytes of an empty tier: %d at first, now %d", c.empty, c.live())
}
