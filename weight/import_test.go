package weight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// shards fills the source with n shards of different large sizes, without an index.
func (e *env) shards(n int) (total int64) {
	for i := range n {
		p := shard(map[string]int{fmt.Sprintf("t%d", i): mib + 100*i}, uint64(i))
		e.mem.Put(shardName(i), p)
		total += int64(len(p))
	}
	e.mem.Put("config.json", []byte("{}"))
	return total + 2
}

func shardName(i int) string { return fmt.Sprintf("m-%02d.safetensors", i) }

// TestTwoImportsAtOnce starts many imports of one revision: one does the work, all get its result.
func TestTwoImportsAtOnce(t *testing.T) {
	e := newEnv(t, store.Options{})
	total := e.shards(4)
	results := make([]*ImportResult, 8)
	var all sync.WaitGroup
	started := make(chan struct{})
	e.mem.At(shardName(0), mib/2, func() error { <-started; return nil })
	for i := range results {
		all.Go(func() {
			var err error
			results[i], err = e.m.Import(context.Background(), e.request(ref))
			require.NoError(t, err)
		})
	}
	require.Eventually(t, func() bool {
		e.m.mu.Lock()
		defer e.m.mu.Unlock()
		return e.m.mu.imports[ref] != nil && e.m.mu.imports[ref].users == len(results)
	}, 5*time.Second, time.Millisecond)
	close(started)
	all.Wait()
	for _, r := range results {
		require.Same(t, results[0], r)
	}
	require.Equal(t, total, results[0].Read)
	e.deepOK(ref)
}

// TestImportsOfDifferentRequests lets a second request for the same revision wait for the first, then compares.
func TestImportsOfDifferentRequests(t *testing.T) {
	e := newEnv(t, store.Options{})
	e.shards(2)
	hold := make(chan struct{})
	e.mem.At(shardName(0), mib/2, func() error { <-hold; return nil })
	first, err := e.m.Start(context.Background(), e.request(ref))
	require.NoError(t, err)
	q := e.request(ref)
	q.Source = "mem://other"
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = e.m.Import(short, q)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	done := make(chan *ImportResult, 1)
	go func() {
		r, err := e.m.Import(context.Background(), q)
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	close(hold)
	_, err = first.Wait(context.Background())
	require.NoError(t, err)
	require.True(t, (<-done).Existed)
}

// TestOneOfTwoGivesUp cancels one caller of a shared import: it returns at once, the other gets the result.
func TestOneOfTwoGivesUp(t *testing.T) {
	e := newEnv(t, store.Options{})
	e.shards(2)
	hold := make(chan struct{})
	e.mem.At(shardName(0), mib/2, func() error { <-hold; return nil })
	other, err := e.m.Start(context.Background(), e.request(ref))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		_, err := e.m.Import(ctx, e.request(ref))
		left <- err
	}()
	time.Sleep(5 * time.Millisecond)
	cancel()
	select {
	case err := <-left:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(time.Minute):
		t.Error("a cancelled caller waits for the others' import")
	}
	close(hold)
	_, err = other.Wait(context.Background())
	require.NoError(t, err)
	e.deepOK(ref)
}

// TestCancelAndResume cancels an import in the middle. What is stored completely is not read again.
func TestCancelAndResume(t *testing.T) {
	for name, opts := range map[string]store.Options{"memory": {}, "directory": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, opts)
			e.shards(6)
			ctx, cancel := context.WithCancel(context.Background())
			q := e.request(ref)
			q.Parallel = 1 // largest first: 5, 4, 3, ...
			e.mem.At(shardName(2), mib/2, func() error { cancel(); time.Sleep(50 * time.Millisecond); return nil })
			_, err := e.m.Import(ctx, q)
			require.ErrorIs(t, err, context.Canceled)

			_, err = e.m.Load(context.Background(), ref, nil)
			require.ErrorIs(t, err, ErrNotReady)
			_, err = e.m.Check(context.Background(), ref, Deep)
			require.ErrorIs(t, err, ErrNotReady)
			require.ErrorIs(t, e.m.Delete(context.Background(), ref), ErrNotReady)
			list, err := e.m.List(context.Background(), ref.ModelID)
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, Importing, list[0].State)
			require.Equal(t, 7, list[0].Files)
			require.Greater(t, list[0].Stored, int64(3*mib))
			require.False(t, list[0].Running)

			if opts.Dir != "" {
				e.reopen()
			}
			before := map[int]int64{}
			for i := range 6 {
				before[i] = e.mem.BytesRead(shardName(i))
			}
			r, err := e.m.Import(context.Background(), q)
			require.NoError(t, err)
			require.Equal(t, 3, r.Resumed)
			for i := range 6 {
				again := e.mem.BytesRead(shardName(i)) - before[i]
				if i >= 3 {
					require.Less(t, again, int64(100_000), "only the header of %s is read again", shardName(i))
				}
			}
			require.Less(t, r.Read, int64(4*mib))
			e.deepOK(ref)
			require.Len(t, keysOf(t, e.s, ref.receiptPrefix()), 0)
			require.NoError(t, e.m.Delete(context.Background(), ref))
			e.nothing()
		})
	}
}

// TestResumeOfChangedFile reads a file again that is another one since.
func TestResumeOfChangedFile(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.shards(3)
	e.mem.FailAt(shardName(0), mib/2, errors.New("broken"))
	q := e.request(ref)
	q.Parallel = 1
	_, err := e.m.Import(context.Background(), q)
	require.ErrorContains(t, err, "broken")
	fresh := shard(map[string]int{"t2": mib + 200}, 99)
	e.mem.Put(shardName(2), fresh)
	r, err := e.m.Import(context.Background(), q)
	require.NoError(t, err)
	require.Equal(t, 1, r.Resumed)
	f, _ := r.Manifest.File(shardName(2))
	require.Equal(t, sha(fresh), f.SHA256)
	e.deepOK(ref)
}

func TestAbort(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.shards(4)
	require.ErrorIs(t, e.m.Abort(ctx, ref), ErrNotFound)
	require.ErrorIs(t, e.m.Abort(ctx, Ref{}), ErrInvalid)

	e.mem.FailAt(shardName(0), mib/2, errors.New("broken"))
	_, err := e.m.Import(ctx, e.request(ref))
	require.ErrorContains(t, err, "broken")
	require.NoError(t, e.m.Abort(ctx, ref))
	e.nothing()

	reached, hold := make(chan struct{}), make(chan struct{})
	e.mem.At(shardName(0), mib/2, func() error { close(reached); <-hold; return nil })
	i, err := e.m.Start(ctx, e.request(ref))
	require.NoError(t, err)
	<-reached
	list, err := e.m.List(ctx, "")
	require.NoError(t, err)
	require.True(t, list[0].Running)
	require.ErrorIs(t, e.m.Delete(ctx, ref), ErrNotReady)
	time.AfterFunc(10*time.Millisecond, func() { close(hold) })
	require.NoError(t, e.m.Abort(ctx, ref))
	_, err = i.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
	e.nothing()

	// While it is still looking at the source, nothing is stored that there could be to remove.
	reached, hold = make(chan struct{}), make(chan struct{})
	e.mem.At(shardName(0), 4, func() error { close(reached); <-hold; return nil })
	_, err = e.m.Start(ctx, e.request(ref))
	require.NoError(t, err)
	<-reached
	time.AfterFunc(10*time.Millisecond, func() { close(hold) })
	require.NoError(t, e.m.Abort(ctx, ref), "it ended an import")
	e.nothing()

	e.doImport(ref)
	require.ErrorIs(t, e.m.Abort(ctx, ref), ErrInvalid, "it is READY")
	e.deepOK(ref)
}

// TestEqualFilesCostNothing imports equal files inside and across revisions.
func TestEqualFilesCostNothing(t *testing.T) {
	for name, opts := range map[string]store.Options{"memory": {}, "directory": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			e := newEnv(t, opts)
			big, small := shard(map[string]int{"a": 3 * mib}, 1), shard(map[string]int{"a": 500_000}, 2)
			for i := range 4 { // side by side: no one is stored before another begins
				e.mem.Put(fmt.Sprintf("%d/same.safetensors", i), big)
				e.mem.Put(fmt.Sprintf("%d/small.safetensors", i), small)
			}
			e.mem.Put("x.safetensors", shard(map[string]int{"x": 10}, 1))
			q := e.request(ref)
			q.Include, q.Parallel = []string{"*"}, 4
			r, err := e.m.Import(ctx, q)
			require.NoError(t, err)
			require.Equal(t, 6, r.Linked)
			e.deepOK(ref)
			unique := int64(len(big) + len(small))
			require.InDelta(t, unique, e.weightBytes(), 2000)

			two := Ref{ref.ModelID, "2"}
			q.Ref = two
			e.mem.Put("config.json", []byte("{}"))
			r, err = e.m.Import(ctx, q)
			require.NoError(t, err)
			require.Equal(t, 8, r.Linked)
			require.InDelta(t, unique, e.weightBytes(), 4000)
			use, total, err := e.m.Usage(ctx)
			require.NoError(t, err)
			require.Equal(t, e.weightBytes(), total)
			require.Len(t, use, 2)
			for _, u := range use {
				require.InDelta(t, 4*unique, u.Shared, 1)
				require.InDelta(t, u.Bytes, u.Shared, 2000)
			}
			require.NoError(t, e.m.Delete(ctx, ref)) // the owner goes, the links stay
			e.deepOK(two)
			require.InDelta(t, unique, e.weightBytes(), 4000)
			if opts.Dir != "" {
				e.reopen()
				e.deepOK(two)
				require.InDelta(t, unique, e.weightBytes(), 4000)
			}
			l, err := e.m.Load(ctx, two, nil)
			require.NoError(t, err)
			for i := range 4 {
				require.Equal(t, big, read(t, fmt.Sprintf("%s/%d/same.safetensors", l.Dir(), i)))
			}
			require.NoError(t, l.Close())
			require.NoError(t, e.m.Delete(ctx, two))
			e.nothing()
		})
	}
}

// weightBytes is what weights take in the store, links counted once.
func (e *env) weightBytes() int64 {
	u, err := e.s.Usage()
	require.NoError(e.t, err)
	return max(u.Tiers[store.TierMemory][store.Weight].Bytes, u.Tiers[store.TierSSD][store.Weight].Bytes)
}

// TestLinkToWhatGoes deletes the revision whose bytes an import is about to share: it stores its own.
func TestLinkToWhatGoes(t *testing.T) {
	e := newEnv(t, store.Options{})
	e.shards(2)
	e.doImport(ref)
	two := Ref{ref.ModelID, "2"}
	q := e.request(two)
	q.Parallel = 1
	var once sync.Once
	e.mem.At(shardName(1), mib/2, func() error {
		once.Do(func() {
			if err := e.m.Delete(context.Background(), ref); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
	r, err := e.m.Import(context.Background(), q)
	require.NoError(t, err)
	require.Zero(t, r.Linked)
	e.deepOK(two)
}

// TestUnfinishedTTL removes an interrupted import that nobody went on with.
func TestUnfinishedTTL(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.shards(3)
	e.mem.FailAt(shardName(0), mib/2, errors.New("broken"))
	_, err := e.m.Import(context.Background(), e.request(ref))
	require.ErrorContains(t, err, "broken")
	e.reopen()
	require.NotEmpty(t, keysOf(t, e.s, keyPrefix))
	e.wo.UnfinishedTTL = time.Nanosecond
	e.reopen()
	e.nothing()
}

// TestProgress polls an import.
func TestProgress(t *testing.T) {
	e := newEnv(t, store.Options{})
	total := e.shards(3)
	hold := make(chan struct{})
	e.mem.At(shardName(0), mib/2, func() error { <-hold; return nil })
	q := e.request(ref)
	q.Parallel = 1
	i, err := e.m.Start(context.Background(), q)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return i.Progress().FilesDone == 2 }, 5*time.Second, time.Millisecond)
	p := i.Progress()
	require.Equal(t, "importing", p.Phase)
	require.Equal(t, 4, p.Files)
	require.Equal(t, total, p.Bytes)
	require.Greater(t, p.BytesRead, int64(2*mib))
	close(hold)
	<-i.Done()
	p = i.Progress()
	require.Equal(t, "done", p.Phase)
	require.Equal(t, total, p.BytesDone)
	require.Equal(t, total, p.BytesRead)
	require.Equal(t, 4, p.FilesDone)
}

func TestRequests(t *testing.T) {
	e := newEnv(t, store.Options{})
	e.shards(1)
	for _, q := range []ImportRequest{
		{}, {Ref: ref}, {Ref: ref, Source: "mem://x", Parallel: -1}, {Ref: ref, Source: "mem://x", Parallel: MaxParallel + 1},
		{Ref: ref, Source: "mem://x", Replicas: -1}, {Ref: ref, Source: "mem://x", Include: []string{"["}},
		{Ref: ref, Source: "mem://x", Exclude: []string{"["}}, {Ref: Ref{"m", "a/b"}, Source: "mem://x"},
	} {
		_, err := e.m.Import(context.Background(), q)
		require.ErrorIs(t, err, ErrInvalid, "%+v", q)
	}
	_, err := e.m.Import(context.Background(), ImportRequest{Ref: ref, Source: "nothing://x"})
	require.Error(t, err)
	_, err = e.m.Import(context.Background(), ImportRequest{Ref: ref, Source: t.TempDir() + "/absent"})
	require.Error(t, err)
	e.nothing()
	require.NoError(t, e.m.Close())
	_, err = e.m.Import(context.Background(), e.request(ref))
	require.ErrorIs(t, err, ErrClosed)
	_, err = e.m.Load(context.Background(), ref, nil)
	require.Error(t, err)
}

// TestManifestBeingWritten asks for a revision in the moment before it is READY.
func TestManifestBeingWritten(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{})
	w, err := e.s.Create(ctx, ref.ManifestKey(), 10, e.m.metadata())
	require.NoError(t, err)
	defer w.Abort()
	_, err = e.m.Manifest(ctx, ref)
	require.ErrorIs(t, err, ErrNotReady)
	_, err = e.m.List(ctx, "")
	require.NoError(t, err)
}

// TestMostParallel imports with as many readers as there may be, two revisions at a time.
func TestMostParallel(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.shards(20)
	var all sync.WaitGroup
	for _, r := range []Ref{ref, {ref.ModelID, "2"}} {
		all.Go(func() {
			q := e.request(r)
			q.Parallel = MaxParallel
			if _, err := e.m.Import(context.Background(), q); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	e.deepOK(ref)
}

// TestEqualFilesNeedNoRoom imports a second revision that has no room but for what it shares.
func TestEqualFilesNeedNoRoom(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir(), SSDBytes: 20 * mib, MemoryBytes: 16 * mib})
	e.put(6*mib, 1)
	e.doImport(ref)
	e.mem.Put("config.json", []byte(`{"changed":true}`))
	before := e.mem.BytesRead(shard1)
	r := e.doImport(Ref{ref.ModelID, "2"})
	require.Equal(t, 2, r.Linked)
	require.Less(t, e.mem.BytesRead(shard1)-before, int64(7*mib), "read once")
	e.deepOK(Ref{ref.ModelID, "2"})
	e.put(6*mib, 9) // of the same sizes, but not the same
	_, err := e.m.Import(context.Background(), e.request(Ref{ref.ModelID, "3"}))
	require.ErrorIs(t, err, ErrNoRoom)
	_, err = e.m.Manifest(context.Background(), Ref{ref.ModelID, "3"})
	require.ErrorIs(t, err, ErrNotFound)
}
