package master

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// setReaders pretends that a record has n readers.
func (f *fixture) setReaders(r Ref, n uint64) {
	word := &f.Master.mem.at(r).word
	atomic.StoreUint64(word, atomic.LoadUint64(word)&(1<<readerShift-1)|n<<readerShift)
}

// A reader too many is refused. If the count overflowed to none, a removal would free the bytes under all of them.
func TestReadersOfOneObjectAreLimited(t *testing.T) {
	for _, name := range []string{"o", "l"} {
		f := newFixture(t)
		o := f.put(request("o", 100), Loc{1, 1, 0})
		f.link("l", "o", "")
		f.setReaders(o.Ref, maxReaders-1)
		_, err := f.Acquire(f.now, key(name), 0)
		require.NoError(t, err)
		for range 3 {
			_, err = f.Acquire(f.now, key(name), 0)
			require.ErrorIs(t, err, status.Busy)
		}
		require.True(t, f.Exists(f.now, key("o"), 0), "it needs no pin")
		require.True(t, f.Exists(f.now, key("l"), 0), "it needs no pin")
		o, err = f.Stat(key(name))
		require.NoError(t, err)
		require.Equal(t, maxReaders, o.Readers)
		_, err = f.Remove(f.now, key(name), false)
		require.ErrorIs(t, err, status.HasLease)
		gone, err := f.Remove(f.now, key(name), true)
		require.NoError(t, err, "removals have room of their own")
		f.Release(gone.Pinned)
		f.setReaders(o.Holder(), 1)
		f.Release(o.Holder())
		f.remove(map[string]string{"o": "l", "l": "o"}[name])
		f.requireEmpty()
	}
}

// Pins that can't be refused never wrap to none.
func TestPinsNeverOverflow(t *testing.T) {
	f := newFixture(t)
	o := f.put(request("o", 100), Loc{1, 1, 0})
	f.setReaders(o.Ref, maxPins)
	rec := f.Master.mem.at(o.Ref)
	require.Panics(t, func() { pin(rec) })
	require.Equal(t, maxPins, readersOf(loadWord(rec)))
	_, err := f.StartMove(o.Ref, o.Gen)
	require.ErrorIs(t, err, status.Busy)
}
