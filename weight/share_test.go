package weight

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// TestEqualAtTheSameTime imports the same bytes as several revisions at once: they are stored once.
func TestEqualAtTheSameTime(t *testing.T) {
	for name, opts := range map[string]store.Options{"memory": {}, "directory": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, opts)
			e.put(4*mib, 1)
			const n = 4
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					_, err := e.m.Import(context.Background(), e.request(Ref{"m", fmt.Sprint(i)}))
					require.NoError(t, err)
				})
			}
			all.Wait()
			owners := 0
			for _, key := range keysOf(t, e.s, "weight:m:") {
				info, err := e.s.Stat(key)
				require.NoError(t, err)
				if info.Type == store.Weight && info.Size > mib && !info.Link {
					owners++
				}
			}
			require.Equal(t, 2, owners, "of two shards")
			for i := range n {
				e.deepOK(Ref{"m", fmt.Sprint(i)})
			}
			for i := range n - 1 { // those that are left are still known
				require.NoError(t, e.m.Delete(context.Background(), Ref{"m", fmt.Sprint(i)}))
			}
			if opts.Dir != "" {
				e.reopen()
			}
			require.Equal(t, 2, e.doImport(Ref{"m", "again"}).Linked)
			require.NoError(t, e.m.Delete(context.Background(), Ref{"m", fmt.Sprint(n - 1)}))
			require.NoError(t, e.m.Delete(context.Background(), Ref{"m", "again"}))
			e.nothing()
		})
	}
}

// TestNoLinkToOtherBytes shares bytes with a revision that is deleted and imported anew with others, all the time.
func TestNoLinkToOtherBytes(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{MemoryBytes: 64 * mib})
	other := newEnv(t, store.Options{})
	e.put(2*mib, 1)
	e.wo.Sources.Handle("other", memory{other.mem})
	done := make(chan struct{})
	go func() {
		defer close(done)
		moving := Ref{"moving", "1"}
		for i := range 10 {
			other.put(2*mib, uint64(i%2*10+1))
			_, err := e.m.Import(ctx, ImportRequest{Ref: moving, Source: "other://m"})
			if err == nil {
				err = e.m.Delete(ctx, moving)
			}
			require.NoError(t, err)
		}
	}()
	for i := 0; ; i++ {
		r := Ref{"m", fmt.Sprint(i)}
		e.doImport(r)
		e.deepOK(r)
		require.NoError(t, e.m.Delete(ctx, r))
		select {
		case <-done:
			return
		default:
		}
	}
}
