package store

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Copies of what was opened are the same thing: whichever is closed first ends it, and none ends it twice. Otherwise the
// pin of another reader would go, and its bytes be freed under it.
func TestCopiesShareOneState(t *testing.T) {
	ctx := context.Background()
	readers := func(s *Store) int {
		i, err := s.Stat("k")
		require.NoError(t, err)
		return i.Readers
	}
	for name, open := range map[string]func(t *testing.T, s *Store) (first, second, again io.Closer){
		"view": func(t *testing.T, s *Store) (_, _, _ io.Closer) {
			v, err := s.View(ctx, "k", nil)
			require.NoError(t, err)
			one, two := *v, *v
			return &one, v, &two
		},
		"view of a range": func(t *testing.T, s *Store) (_, _, _ io.Closer) {
			v, err := s.ViewRange(ctx, "k", 5, 7, nil)
			require.NoError(t, err)
			one, two := *v, *v
			return &one, v, &two
		},
		"file": func(t *testing.T, s *Store) (_, _, _ io.Closer) {
			f, err := s.File(ctx, "k", nil)
			require.NoError(t, err)
			one, two := *f, *f
			return &one, f, &two
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{MemoryBytes: MinMemoryBytes})
			want := random(2 << 20)
			require.NoError(t, s.Put(ctx, "k", want, &PutOptions{OwnFile: true}))
			victim, err := s.View(ctx, "k", nil)
			require.NoError(t, err)
			first, second, again := open(t, s)
			require.Equal(t, 2, readers(s))
			require.NoError(t, first.Close())
			require.ErrorIs(t, second.Close(), ErrClosed)
			require.ErrorIs(t, first.Close(), ErrClosed)
			require.ErrorIs(t, again.Close(), ErrClosed)
			require.Equal(t, 1, readers(s), "the other reader's pin")
			require.NoError(t, s.Remove("k", true))
			for i := range 8 { // who reuses what is free would show
				_ = s.Put(ctx, string(rune('a'+i)), random(1<<20), nil)
			}
			require.Equal(t, want, victim.Bytes())
			require.NoError(t, victim.Close())
		})
	}
}

func TestCopiedViewHasNoBytesOnceOneIsClosed(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{})
	require.NoError(t, s.Put(ctx, "k", random(100), nil))
	v, err := s.View(ctx, "k", nil)
	require.NoError(t, err)
	c := *v
	require.Equal(t, random(100), c.Bytes())
	require.NoError(t, v.Close())
	require.Nil(t, c.Bytes())
	require.Nil(t, c.Segments())
}

// A put goes on as long as any copy of its Writer is there, and ends once.
func TestCopiesOfAWriter(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{})
	create := func() (Writer, Writer) {
		w, err := s.Create(ctx, "k", 3, nil)
		require.NoError(t, err)
		return *w, *w
	}
	w, c := create()
	for range 3 { // what the first pointer leaves is collected, and the put is not aborted
		runtime.GC()
	}
	_, err := w.Write([]byte("ab"))
	require.NoError(t, err)
	_, err = c.Write([]byte("c"))
	require.NoError(t, err)
	require.NoError(t, c.Commit(ctx))
	require.ErrorIs(t, w.Commit(ctx), ErrNotWriter)
	w.Abort()
	c.Abort()
	got, err := s.Get(ctx, "k", nil)
	require.NoError(t, err)
	require.Equal(t, "abc", string(got))
	i, err := s.Stat("k")
	require.NoError(t, err)
	require.Zero(t, i.Readers)

	require.NoError(t, s.Remove("k", true))
	w, c = create()
	w.Abort()
	c.Abort()
	require.ErrorIs(t, c.Commit(ctx), ErrNotWriter)
	require.NoError(t, s.Put(ctx, "k", []byte("new"), nil))
	u, err := s.Usage()
	require.NoError(t, err)
	require.Zero(t, u.Reserved)
	require.Zero(t, u.InUse)
}
