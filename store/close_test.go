package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// stalledReader gives some bytes, then tells that it waits, and goes on when it is let.
type stalledReader struct {
	first   io.Reader
	waits   chan struct{}
	release chan struct{}
	rest    io.Reader
}

func newStalledReader(value []byte, first int) *stalledReader {
	return &stalledReader{bytes.NewReader(value[:first]), make(chan struct{}), make(chan struct{}), bytes.NewReader(value[first:])}
}

func (r *stalledReader) Read(p []byte) (int, error) {
	if n, err := r.first.Read(p); err == nil {
		return n, nil
	}
	if r.waits != nil {
		close(r.waits)
		<-r.release
		r.waits = nil
	}
	return r.rest.Read(p)
}

// closeCases are the stores that a put may go to: one in memory, one with a directory, and straight to SSD.
var closeCases = []struct {
	name string
	dir  bool
	put  PutOptions
}{
	{"memory", false, PutOptions{}}, {"own file", false, PutOptions{OwnFile: true}}, {"directory", true, PutOptions{}},
	{"durable", true, PutOptions{Durable: true}}, {"own SSD file", true, PutOptions{Durable: true, OwnFile: true}},
}

func openToClose(t *testing.T, dir bool) (*Store, Options) {
	t.Helper()
	o := Options{FileBytes: 1 << 20}
	if dir {
		o.Dir = t.TempDir()
	}
	o = testOptions(t, o)
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	return s, o
}

// requireGone opens a directory again: nothing of the put is there, and its key and its room are free.
func requireGone(t *testing.T, o Options, key string, value []byte) {
	t.Helper()
	if o.Dir == "" {
		return
	}
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	there, err := s.Exists(key)
	require.NoError(t, err)
	require.False(t, there)
	u, err := s.Usage()
	require.NoError(t, err)
	require.Zero(t, u.Reserved)
	require.Zero(t, u.SSDLive)
	require.NoError(t, s.Put(t.Context(), key, value, nil))
	require.NoError(t, s.Close())
}

// Close does not wait for a put that waits for its reader, and the put touches nothing of the store afterwards: the
// directory is another store's by then.
func TestCloseDoesNotWaitForASource(t *testing.T) {
	value := bytes.Repeat([]byte("value"), 1<<19)
	for _, c := range closeCases {
		for _, first := range []int{0, 10, 1 << 20} {
			t.Run(fmt.Sprint(c.name, " after ", first), func(t *testing.T) {
				s, o := openToClose(t, c.dir)
				r := newStalledReader(value, first)
				ended := make(chan error, 1)
				go func() { ended <- s.PutFrom(context.Background(), "k", r, int64(len(value)), &c.put) }()
				<-r.waits
				require.NoError(t, s.Close())
				requireGone(t, o, "k", value)
				close(r.release)
				require.ErrorIs(t, <-ended, ErrClosed)
				requireReopened(t, o, "k", value)
			})
		}
	}
}

// requireReopened checks what requireGone has put.
func requireReopened(t *testing.T, o Options, key string, value []byte) {
	t.Helper()
	if o.Dir == "" {
		return
	}
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	got, err := s.Get(t.Context(), key, nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(value, got))
	require.NoError(t, s.Close())
}

// Close does not wait for a Writer, and the Writer ends with ErrClosed.
func TestCloseDoesNotWaitForAWriter(t *testing.T) {
	value := bytes.Repeat([]byte("value"), 1<<19)
	for _, c := range closeCases {
		t.Run(c.name, func(t *testing.T) {
			s, o := openToClose(t, c.dir)
			w, err := s.Create(t.Context(), "k", int64(len(value)), &c.put)
			require.NoError(t, err)
			_, err = w.Write(value[:100])
			require.NoError(t, err)
			require.NoError(t, s.Close())
			requireGone(t, o, "k", value)
			_, err = w.Write(value[100:])
			require.ErrorIs(t, err, ErrClosed)
			_, err = w.ReadFrom(bytes.NewReader(value))
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorIs(t, w.Commit(t.Context()), ErrClosed)
			w.Abort()
			requireReopened(t, o, "k", value)
		})
	}
}

// Abort and Commit of a Writer don't wait for a reader that another goroutine reads from.
func TestWriterEndsDuringAStalledReadFrom(t *testing.T) {
	value := bytes.Repeat([]byte("value"), 1<<19)
	for _, c := range closeCases {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, commit), func(t *testing.T) {
				s, _ := openToClose(t, c.dir)
				w, err := s.Create(t.Context(), "k", int64(len(value)), &c.put)
				require.NoError(t, err)
				r := newStalledReader(value, 1<<20)
				ended := make(chan error, 1)
				go func() { _, err := w.ReadFrom(r); ended <- err }()
				<-r.waits
				if commit {
					require.ErrorIs(t, w.Commit(t.Context()), ErrIncomplete)
				} else {
					w.Abort()
				}
				require.NoError(t, s.Put(t.Context(), "k", []byte("other"), nil))
				close(r.release)
				require.ErrorIs(t, <-ended, ErrNotWriter)
				got, err := s.Get(t.Context(), "k", nil)
				require.NoError(t, err)
				require.Equal(t, "other", string(got))
				require.NoError(t, s.Close())
			})
		}
	}
}

// CloseContext lets puts end that have begun, and nothing else begin.
func TestCloseContextLetsPutsEnd(t *testing.T) {
	value := bytes.Repeat([]byte("value"), 1<<19)
	for _, c := range closeCases {
		t.Run(c.name, func(t *testing.T) {
			s, o := openToClose(t, c.dir)
			r := newStalledReader(value, 1<<20)
			ended, closed := make(chan error, 1), make(chan error, 1)
			go func() { ended <- s.PutFrom(context.Background(), "k", r, int64(len(value)), &c.put) }()
			<-r.waits
			w, err := s.Create(t.Context(), "w", 5, nil)
			require.NoError(t, err)
			go func() { closed <- s.CloseContext(context.Background()) }()
			eventually(t, "refusal", func() bool { return errors.Is(s.Put(t.Context(), "x", value, nil), ErrClosed) })
			close(r.release)
			require.NoError(t, <-ended)
			_, err = w.Write(value[:5])
			require.NoError(t, err)
			require.NoError(t, w.Commit(t.Context()))
			require.NoError(t, <-closed)
			require.NoError(t, s.Close())
			requireReopened(t, o, "k", value)
			requireReopened(t, o, "w", value[:5])
		})
	}
}

// CloseContext aborts what has not ended in time, and says what it was.
func TestCloseContextSaysWhatItAborted(t *testing.T) {
	value := bytes.Repeat([]byte("value"), 1<<19)
	for _, c := range closeCases {
		t.Run(c.name, func(t *testing.T) {
			s, o := openToClose(t, c.dir)
			r := newStalledReader(value, 10)
			ended := make(chan error, 1)
			go func() { ended <- s.PutFrom(context.Background(), "k", r, int64(len(value)), &c.put) }()
			<-r.waits
			tenant, err := s.Tenant("t")
			require.NoError(t, err)
			var writers []*Writer // one that is dropped ends by itself
			for i := range maxAbortedKeys {
				w, err := tenant.Create(t.Context(), fmt.Sprint("w", i), 5, nil)
				require.NoError(t, err)
				writers = append(writers, w)
			}
			ctx, cancel := context.WithCancel(context.Background())
			closed := make(chan error, 1)
			go func() { closed <- s.CloseContext(ctx) }()
			eventually(t, "refusal", func() bool { return errors.Is(s.Put(t.Context(), "x", value, nil), ErrClosed) })
			cancel()
			err = <-closed
			require.ErrorIs(t, err, context.Canceled)
			var aborted *AbortedError
			require.ErrorAs(t, err, &aborted)
			require.Equal(t, maxAbortedKeys+1, aborted.Puts)
			require.Len(t, aborted.Keys, maxAbortedKeys)
			runtime.KeepAlive(writers)
			require.ErrorContains(t, err, "aborted 17 unfinished puts")
			require.ErrorContains(t, err, `"t/w`)
			require.Equal(t, err, s.Close())
			requireGone(t, o, "k", value)
			close(r.release)
			require.ErrorIs(t, <-ended, ErrClosed)
		})
	}
}

// Close ends the grace that CloseContext gives.
func TestCloseHurriesCloseContext(t *testing.T) {
	s, _ := openToClose(t, false)
	w, err := s.Create(t.Context(), "w", 5, nil)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- s.CloseContext(context.Background()) }()
	eventually(t, "refusal", func() bool { return errors.Is(s.Sync(t.Context()), ErrClosed) })
	err = s.Close()
	require.ErrorContains(t, err, `aborted 1 unfinished puts: "w"`)
	require.Equal(t, err, <-closed)
	runtime.KeepAlive(w)
}
