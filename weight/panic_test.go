package weight

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/store"
)

// A panic in a goroutine of an import is the import's error, with where it came from, and the next one goes on.
func TestPanicOfImport(t *testing.T) {
	ctx := context.Background()
	for name, at := range map[string]struct {
		file string
		byte int64
	}{
		"checking":   {mainIndex, 1},
		"header":     {shard2, 4},
		"large file": {shard2, 1 << 20},
		"small file": {"config.json", 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, store.Options{})
			e.put(2*mib, 1)
			requirePanic := func() {
				t.Helper()
				e.mem.At(at.file, at.byte, func() error { panic("injected") })
				_, err := e.m.Import(ctx, e.request(ref))
				require.ErrorIs(t, err, store.ErrInternal)
				require.ErrorContains(t, err, "panic: injected")
				require.ErrorContains(t, err, "panic_test.go")
				require.Equal(t, -1, Code(err))
			}
			requirePanic()
			e.doImport(ref)
			requirePanic() // which compares
			e.deepOK(ref)
			require.NoError(t, e.s.Err())
		})
	}
}

func TestPanicOfPlacing(t *testing.T) {
	e := newEnv(t, store.Options{})
	err := e.m.place(context.Background(), t.TempDir()+"/f", File{Name: "f"}, new(store.File), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	e.m.s = nil
	err = e.m.place(context.Background(), t.TempDir()+"/f", File{Name: "f", Size: 1}, nil, make([]byte, 1))
	require.ErrorIs(t, err, store.ErrInternal)
	e.m.s = e.s
}

// A claim is settled also by a panic: others wait for it.
func TestPanicSettlesClaim(t *testing.T) {
	e := newEnv(t, store.Options{})
	s := &storing{Import: &Import{m: e.m, q: ImportRequest{Ref: ref}}}
	f := File{Name: "f", Key: ref.FileKey("f"), Size: mib, SHA256: sha(nil)}
	require.True(t, e.m.known.tryClaim(contentOf(f)))
	require.Panics(t, func() { _ = s.settled(f, func() error { panic("injected") }) })
	require.True(t, e.m.known.tryClaim(contentOf(f)), "it is free again")
	e.m.known.settle(contentOf(f), f.Key, os.ErrClosed)

	e.mem.Put("a", make([]byte, linkBytes))
	e.mem.Put("b", []byte("bb"))
	s.src = e.mem.Source()
	l, err := s.src.List(context.Background())
	require.NoError(t, err)
	e.mem.At("b", 1, func() error { panic("injected") })
	require.Panics(t, func() { _, _ = s.putFresh(context.Background(), []source.Info{l.Files[0], l.Files[1]}) })
	a := File{Size: linkBytes, SHA256: sha(make([]byte, linkBytes))}
	require.True(t, e.m.known.tryClaim(contentOf(a)), "it is free again")
}
