// Package sourcetest tests implementations of source.Source: Run is the conformance suite, Mem a source in memory
// with faults.
package sourcetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// Instance is a source under test and a way to change what it reads.
type Instance struct {
	Source source.Source

	// Put creates or replaces a file; a replacement has another identity, even with bytes of the same length. Remove
	// deletes one. Without them the tests of changes are skipped.
	Put    func(t *testing.T, name string, data []byte)
	Remove func(t *testing.T, name string)
}

// Run runs the suite. open returns a source with exactly these files; the suite closes it.
func Run(t *testing.T, open func(t *testing.T, files map[string][]byte) Instance) {
	s := suite{open}
	t.Run("List", s.list)
	t.Run("ListMany", s.listMany)
	t.Run("Stat", s.stat)
	t.Run("Read", s.read)
	t.Run("Ranges", s.ranges)
	t.Run("Concurrent", s.concurrent)
	t.Run("BadNames", s.badNames)
	t.Run("Cancel", s.cancel)
	t.Run("Close", s.close)
	t.Run("Changed", s.changed)
}

type suite struct {
	open func(t *testing.T, files map[string][]byte) Instance
}

func (s suite) start(t *testing.T, files map[string][]byte) Instance {
	in := s.open(t, files)
	t.Cleanup(func() { require.NoError(t, in.Source.Close()) })
	return in
}

// hardNames are valid names that a careless implementation escapes, folds or cuts.
var hardNames = []string{
	"config.json", "a b", "a+b", "a%2Fb", "%", "100%", "q?x=1", "x#y", "sub/dir/file.bin", "sub/d", "subx", "Ünïcode/模型-00001",
	"UPPER", "upper", ".hidden", "a\\b", "a:b", "...", "tab\tnew\nline", "'\"`$(x)",
}

func (s suite) list(t *testing.T) {
	files := map[string][]byte{}
	for i, n := range hardNames {
		files[n] = Bytes(uint64(i), i)
	}
	in := s.start(t, files)
	l, err := in.Source.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, l.Refused)
	var got []string
	for _, f := range l.Files {
		got = append(got, f.Name)
		require.Contains(t, []int64{int64(len(files[f.Name])), -1}, f.Size, "size of %q", f.Name)
		require.Equal(t, files[f.Name], readAll(t, in.Source, f), "bytes of %q", f.Name)
	}
	want := slices.Sorted(slices.Values(hardNames))
	require.Equal(t, want, got, "List is sorted by name and complete")
}

func (s suite) listMany(t *testing.T) {
	files := map[string][]byte{}
	for i := range 2500 { // more than a page of S3, and than two
		files[fmt.Sprintf("d%d/f%04d", i%3, i)] = nil
	}
	in := s.start(t, files)
	l, err := in.Source.List(t.Context())
	require.NoError(t, err)
	require.Len(t, l.Files, len(files))
	for _, f := range l.Files {
		if _, ok := files[f.Name]; !ok {
			t.Fatalf("List: %q is not in the source, or listed twice", f.Name)
		}
		delete(files, f.Name)
	}

	empty := s.start(t, nil)
	l, err = empty.Source.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, l.Files)
}

func (s suite) stat(t *testing.T) {
	in := s.start(t, map[string][]byte{"dir/a": Bytes(1, 1000), "empty": nil})
	l, err := in.Source.List(t.Context())
	require.NoError(t, err)
	for _, want := range l.Files {
		got, err := in.Source.Stat(t.Context(), want.Name)
		require.NoError(t, err)
		require.Equal(t, want.Name, got.Name)
		require.True(t, want.Same(got), "Stat %+v, List %+v", got, want)
	}
	for _, absent := range []string{"nothing", "dir/b", "dir/a/b", "nodir/a"} {
		_, err := in.Source.Stat(t.Context(), absent)
		require.ErrorIs(t, err, source.ErrNotFound, "Stat(%q)", absent)
		require.ErrorIs(t, err, fs.ErrNotExist, "Stat(%q)", absent)
		_, err = in.Source.Open(t.Context(), source.Info{Name: absent, Size: -1})
		require.ErrorIs(t, err, source.ErrNotFound, "Open(%q)", absent)
	}
	_, err = in.Source.Stat(t.Context(), "dir")
	require.Error(t, err, "a directory is not a file")
}

func (s suite) read(t *testing.T) {
	const big = 5<<20 + 123
	files := map[string][]byte{"big": Bytes(7, big), "one": {42}, "empty": {}}
	in := s.start(t, files)
	for name, want := range files {
		f := openFile(t, in.Source, name)
		require.Equal(t, name, f.Info().Name)
		for _, size := range []int{1000, 1 << 16, 8 << 20} {
			r, err := f.NewReader(t.Context(), 0, -1)
			require.NoError(t, err)
			got, err := drain(r, size)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "%q read by %d differs", name, size)
			n, err := r.Read(make([]byte, 1))
			require.Equal(t, 0, n)
			require.ErrorIs(t, err, io.EOF, "Read after the end")
			require.NoError(t, r.Close())
		}
		r, err := f.NewReader(t.Context(), 0, -1)
		require.NoError(t, err)
		var b bytes.Buffer
		n, err := io.Copy(&b, r)
		require.NoError(t, err)
		require.EqualValues(t, len(want), n)
		require.True(t, bytes.Equal(want, b.Bytes()))
		require.NoError(t, r.Close())

		r, err = f.NewReader(t.Context(), 0, -1)
		require.NoError(t, err)
		require.NoError(t, r.Close(), "Close before the end")
		require.NoError(t, f.Close())
	}
}

func (s suite) ranges(t *testing.T) {
	want := Bytes(3, 100_000)
	in := s.start(t, map[string][]byte{"f": want})
	f := openFile(t, in.Source, "f")
	defer f.Close()
	size := int64(len(want))
	for _, c := range [][2]int64{{0, 0}, {0, 1}, {0, size}, {1, 70_000}, {size - 1, 1}, {size, 0}, {size, -1}, {12345, -1}} {
		r, err := f.NewReader(t.Context(), c[0], c[1])
		require.NoError(t, err, "NewReader(%d, %d)", c[0], c[1])
		got, err := drain(r, 4096)
		require.NoError(t, err, "NewReader(%d, %d)", c[0], c[1])
		end := c[0] + c[1]
		if c[1] < 0 {
			end = size
		}
		require.True(t, bytes.Equal(want[c[0]:end], got), "NewReader(%d, %d): wrong bytes", c[0], c[1])
		require.NoError(t, r.Close())
	}
	for _, c := range [][2]int64{{-1, 1}, {0, size + 1}, {size, 1}, {size + 1, -1}, {1, 1<<63 - 1}, {1<<63 - 1, 1}} {
		r, err := f.NewReader(t.Context(), c[0], c[1])
		if err == nil { // an implementation that learns the size from the reply may say it late
			_, err = drain(r, 4096)
		}
		require.ErrorIs(t, err, source.ErrShort, "NewReader(%d, %d)", c[0], c[1])
	}
	s.readAt(t, f, want)
}

func (s suite) readAt(t *testing.T, f source.File, want []byte) {
	size := int64(len(want))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		off := rng.Int64N(size)
		p := make([]byte, rng.Int64N(size-off)+1)
		n, err := f.ReadAt(t.Context(), p, off)
		require.Equal(t, len(p), n)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[off:off+int64(n)], p), "ReadAt(%d, %d)", len(p), off)
	}
	p := make([]byte, 10)
	n, err := f.ReadAt(t.Context(), p, size-4)
	require.Equal(t, 4, n)
	require.ErrorIs(t, err, io.EOF)
	n, err = f.ReadAt(t.Context(), p, size)
	require.Equal(t, 0, n)
	require.ErrorIs(t, err, io.EOF)
	_, err = f.ReadAt(t.Context(), p, -1)
	require.Error(t, err)
	n, err = source.ReaderAt(t.Context(), f).ReadAt(p, 5)
	require.Equal(t, 10, n)
	require.NoError(t, err)
	require.Equal(t, want[5:15], p)
}

func (s suite) concurrent(t *testing.T) {
	want := Bytes(9, 1<<20)
	in := s.start(t, map[string][]byte{"f": want})
	f := openFile(t, in.Source, "f")
	defer f.Close()
	errs := make(chan error, 8)
	for i := range cap(errs) {
		go func() { errs <- readSome(t.Context(), f, want, uint64(i)) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
}

func readSome(ctx context.Context, f source.File, want []byte, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 0))
	p := make([]byte, 10_000)
	for range 20 {
		off := rng.IntN(len(want) - len(p))
		if _, err := f.ReadAt(ctx, p, int64(off)); err != nil {
			return err
		}
		if !bytes.Equal(p, want[off:off+len(p)]) {
			return fmt.Errorf("ReadAt(%d): wrong bytes", off)
		}
	}
	r, err := f.NewReader(ctx, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := drain(r, 1<<16)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("NewReader: wrong bytes")
	}
	return err
}

func (s suite) badNames(t *testing.T) {
	in := s.start(t, map[string][]byte{"a": {1}, "sub/b": {2}})
	for _, name := range BadNames() {
		_, err := in.Source.Stat(t.Context(), name)
		require.True(t, isAny(err, source.ErrBadName, source.ErrLimit), "Stat(%.40q): %v", name, err)
		_, err = in.Source.Open(t.Context(), source.Info{Name: name, Size: -1})
		require.True(t, isAny(err, source.ErrBadName, source.ErrLimit), "Open(%.40q): %v", name, err)
	}
}

func (s suite) cancel(t *testing.T) {
	in := s.start(t, map[string][]byte{"f": Bytes(1, 1<<20)})
	f := openFile(t, in.Source, "f")
	defer f.Close()

	ctx, cancel := context.WithCancel(t.Context())
	r, err := f.NewReader(ctx, 0, -1)
	require.NoError(t, err)
	_, err = io.ReadFull(r, make([]byte, 1000))
	require.NoError(t, err)
	cancel()
	_, err = drain(r, 1000)
	require.ErrorIs(t, err, context.Canceled, "a reader stops when its context ends")
	require.NoError(t, r.Close())

	_, err = in.Source.List(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = in.Source.Stat(ctx, "f")
	require.ErrorIs(t, err, context.Canceled)
	_, err = in.Source.Open(ctx, f.Info())
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.NewReader(ctx, 0, -1)
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.ReadAt(ctx, make([]byte, 1), 0)
	require.ErrorIs(t, err, context.Canceled)
}

func (s suite) close(t *testing.T) {
	want := Bytes(1, 100)
	in := s.start(t, map[string][]byte{"f": want})
	f := openFile(t, in.Source, "f")
	require.NoError(t, in.Source.Close())
	require.NoError(t, in.Source.Close(), "second Close")
	_, err := in.Source.List(t.Context())
	require.ErrorIs(t, err, source.ErrClosed)
	_, err = in.Source.Stat(t.Context(), "f")
	require.ErrorIs(t, err, source.ErrClosed)
	_, err = in.Source.Open(t.Context(), f.Info())
	require.ErrorIs(t, err, source.ErrClosed)

	r, err := f.NewReader(t.Context(), 0, -1)
	require.NoError(t, err, "a file outlives its source")
	got, err := drain(r, 10)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, r.Close())
	require.NoError(t, f.Close())
}

// changed covers the moments at which a file may change: before Open, before the first read, in the middle.
func (s suite) changed(t *testing.T) {
	const size = 3 << 20
	for name, change := range map[string]func(t *testing.T, in Instance){
		"SameSize": func(t *testing.T, in Instance) { in.Put(t, "f", Bytes(2, size)) },
		"Shorter":  func(t *testing.T, in Instance) { in.Put(t, "f", Bytes(1, size/2)) },
		"Longer":   func(t *testing.T, in Instance) { in.Put(t, "f", Bytes(1, size+1)) },
		"Empty":    func(t *testing.T, in Instance) { in.Put(t, "f", nil) },
		"Gone":     func(t *testing.T, in Instance) { in.Remove(t, "f") },
	} {
		t.Run(name, func(t *testing.T) {
			in := s.start(t, map[string][]byte{"f": Bytes(1, size)})
			if in.Put == nil || in.Remove == nil {
				t.Skip("the instance can't change files")
			}
			s.changes(t, in, Bytes(1, size), change)
		})
	}
}

func (s suite) changes(t *testing.T, in Instance, data []byte, change func(t *testing.T, in Instance)) {
	info, err := in.Source.Stat(t.Context(), "f")
	require.NoError(t, err)
	f, err := in.Source.Open(t.Context(), info)
	require.NoError(t, err)
	r, err := f.NewReader(t.Context(), 0, -1)
	require.NoError(t, err)
	_, err = io.ReadFull(r, make([]byte, 1000))
	require.NoError(t, err)
	change(t, in)

	_, err = drain(r, 1<<16)
	require.ErrorIs(t, err, source.ErrChanged, "changed in the middle")
	require.NoError(t, r.Close())
	r, err = f.NewReader(t.Context(), 0, -1)
	if err == nil {
		_, err = drain(r, 1<<16)
		r.Close()
	}
	require.ErrorIs(t, err, source.ErrChanged, "changed after Open")
	require.NoError(t, f.Close())
	_, err = in.Source.Open(t.Context(), info)
	require.True(t, isAny(err, source.ErrChanged, source.ErrNotFound), "changed before Open: %v", err)

	in.Put(t, "f", data)
	_, err = in.Source.Open(t.Context(), info)
	require.ErrorIs(t, err, source.ErrChanged, "the old bytes in a new file are another file")
	now, err := in.Source.Stat(t.Context(), "f")
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, readAll(t, in.Source, now)))
}
