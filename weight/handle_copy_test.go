package weight

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Copies of a load are the same load: the second Close does not give up somebody else's use of the directory.
func TestCopiedLoad(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(2*mib, 1)
	e.doImport(ref)
	a, b := e.load(ref), e.load(ref)
	c := *a
	require.NoError(t, c.Close())
	require.ErrorIs(t, a.Close(), ErrClosed)
	require.DirExists(t, b.Dir())
	require.NoError(t, b.Close())
	require.NoDirExists(t, b.Dir())
}

// A tensor's view is closed once, with bytes and without.
func TestCopiedTensorView(t *testing.T) {
	e := newEnv(t, store.Options{})
	e.mem.Put("m.safetensors", shard(map[string]int{"a": 30, "empty": 0}, 1))
	e.doImport(ref)
	for _, name := range []string{"a", "empty"} {
		v, err := e.m.ViewTensor(e.t.Context(), ref, name)
		require.NoError(t, err)
		c := *v
		require.NoError(t, c.Close())
		require.ErrorIs(t, v.Close(), store.ErrClosed)
		require.ErrorIs(t, c.Close(), store.ErrClosed)
	}
}
