package source

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(data), 0o644))
	}
}

func openLocal(t *testing.T, location string) Source {
	t.Helper()
	s, err := NewMux().Open(t.Context(), location)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func readFile(t *testing.T, s Source, name string) (string, error) {
	t.Helper()
	f, err := s.Open(t.Context(), Info{Name: name, Size: -1})
	if err != nil {
		return "", err
	}
	defer f.Close()
	r, err := f.NewReader(t.Context(), 0, -1)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

func refusals(t *testing.T, s Source) map[string]error {
	t.Helper()
	l, err := s.List(t.Context())
	require.NoError(t, err)
	out := map[string]error{}
	for _, r := range l.Refused {
		out[r.Name] = r.Err
	}
	return out
}

func TestMuxSchemes(t *testing.T) {
	for location, want := range map[string]string{
		"s3://b/k": "s3", "HF://x": "hf", "a+b.c-1://x": "a+b.c-1", "/p": "", "p": "", "a b://x": "", "1a://x": "", "://x": "", "s3:/b": "",
		"dir/s3://x": "",
	} {
		require.Equal(t, want, Scheme(location), "Scheme(%q)", location)
	}
	var m Mux
	_, err := m.Open(t.Context(), "/tmp")
	require.ErrorIs(t, err, ErrUnknownScheme)
	_, err = NewMux().Open(t.Context(), "s3://bucket/key")
	require.ErrorIs(t, err, ErrUnknownScheme)
	require.ErrorContains(t, err, "s3")
	_, err = NewMux().Open(t.Context(), "")
	require.ErrorIs(t, err, ErrBadLocation)
	_, err = Local{}.Open(t.Context(), "s3://bucket/key")
	require.ErrorIs(t, err, ErrBadLocation)
	m.Handle("FILE", Local{})
	s, err := m.Open(t.Context(), t.TempDir())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	m.Handle("file", nil)
	_, err = m.Open(t.Context(), t.TempDir())
	require.ErrorIs(t, err, ErrUnknownScheme)
}

func TestLocations(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"my model%1/a": "A"})
	model := filepath.Join(dir, "my model%1")
	t.Chdir(dir)
	escaped := strings.NewReplacer(" ", "%20", "%", "%25").Replace(model)
	for _, good := range []string{
		model, model + "/", "my model%1", "./my model%1", "../" + filepath.Base(dir) + "/my model%1",
		"file://" + escaped, "file://localhost" + escaped, "FILE://LocalHost" + escaped + "/", "file://" + strings.ReplaceAll(escaped, "m", "%6d"),
	} {
		got, err := readFile(t, openLocal(t, good), "a")
		require.NoError(t, err, "%q", good)
		require.Equal(t, "A", got, "%q", good)
	}
	for location, want := range map[string]error{
		"file://host" + escaped: ErrBadLocation, "file://": ErrBadLocation, "file://localhost": ErrBadLocation,
		"file://" + escaped + "?x": ErrBadLocation, "file://" + escaped + "#x": ErrBadLocation, "file:///%zz": ErrBadLocation,
		"file:///tmp/..": ErrBadLocation, "file:///tmp/%2e%2E/x": ErrBadLocation, "file:///a%00": ErrBadLocation, "file:///a%2Fb": ErrBadLocation,
		"a\x00": ErrBadLocation, "nothing": ErrNotFound, "file:///nothing/x": ErrNotFound, "my model%1/a/b": ErrNotFound, "/dev/null": ErrRefused,
	} {
		_, err := NewMux().Open(t.Context(), location)
		require.ErrorIs(t, err, want, "%q", location)
	}
}

func TestSingleFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"real.bin": "data", "other": "x"})
	require.NoError(t, os.Symlink("real.bin", filepath.Join(dir, "link.bin")))
	for _, name := range []string{"real.bin", "link.bin"} { // the user named the link, so it is followed
		s := openLocal(t, filepath.Join(dir, name))
		l, err := s.List(t.Context())
		require.NoError(t, err)
		require.Len(t, l.Files, 1)
		require.Equal(t, name, l.Files[0].Name)
		got, err := readFile(t, s, name)
		require.NoError(t, err)
		require.Equal(t, "data", got)
		_, err = s.Stat(t.Context(), "other")
		require.ErrorIs(t, err, ErrNotFound)
	}
}

// TestB17LinksAndPathsOut is pitfall B17's symlink row.
func TestB17LinksAndPathsOut(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"secret": "s", "outside/f": "s", "root/real": "r", "root/sub/x": "x", "root-2/f": "s"})
	root := filepath.Join(dir, "root")
	for name, target := range map[string]string{
		"up": "../secret", "abs": filepath.Join(dir, "secret"), "absin": filepath.Join(root, "real"), "etc": "/etc/passwd",
		"updir": "../outside", "sibling": "../root-2/f", "dangling": "nothing", "loop": "loop", "hop": "up", "blob": "../../blobs/abc",
		"in": "sub/x", "indir": "sub", "self": ".", "sub/back": "../real", "null": "/dev/null",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, name)))
	}
	s := openLocal(t, root)
	l, err := s.List(t.Context())
	require.NoError(t, err)
	var names []string
	for _, f := range l.Files {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"in", "real", "sub/back", "sub/x"}, names)
	refused := refusals(t, s)
	require.Len(t, refused, 13)
	for name, err := range refused {
		want := ErrRefused
		if name == "dangling" {
			want = ErrNotFound
		}
		require.ErrorIs(t, err, want, name)
		require.ErrorContains(t, err, name)
		_, err = readFile(t, s, name)
		require.ErrorIs(t, err, want, name)
	}
	_, err = readFile(t, s, "updir/f")
	require.ErrorIs(t, err, ErrRefused)
	got, err := readFile(t, s, "in")
	require.NoError(t, err)
	require.Equal(t, "x", got)
}

func TestSpecialFilesNeverBlock(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"ok": "1"})
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	require.NoError(t, os.Symlink("fifo", filepath.Join(dir, "fifolink")))
	sock, err := net.Listen("unix", filepath.Join(dir, "sock"))
	require.NoError(t, err)
	defer sock.Close()
	want := map[string]string{"fifo": "FIFO", "fifolink": "FIFO", "sock": "socket"}
	if syscall.Mknod(filepath.Join(dir, "dev"), syscall.S_IFCHR|0o644, 1<<8|3) == nil { // needs root
		want["dev"] = "device"
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		s := openLocal(t, dir)
		refused := refusals(t, s)
		for name, kind := range want {
			require.ErrorIs(t, refused[name], ErrRefused, name)
			require.ErrorContains(t, refused[name], kind)
			_, err := readFile(t, s, name)
			require.ErrorIs(t, err, ErrRefused, name)
			_, err = NewMux().Open(t.Context(), filepath.Join(dir, name))
			require.ErrorIs(t, err, ErrRefused, name)
		}
		require.Len(t, refused, len(want))
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("blocked on a special file")
	}
}

// TestSwappedForFIFO opens a name that becomes a FIFO after it was looked at.
func TestSwappedForFIFO(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"f": "data"})
	s := openLocal(t, dir).(*localSource)
	require.NoError(t, os.Remove(filepath.Join(dir, "f")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "f"), 0o644))
	f, err := s.root.OpenFile("f", os.O_RDONLY|syscall.O_NONBLOCK, 0) // as Open does after its stat
	require.NoError(t, err)
	defer f.Close()
	file := &localFile{s: s, at: place{root: s.root, name: "f", real: "f"}, f: f, info: Info{Name: "f", Size: -1}}
	require.ErrorIs(t, file.identify(), ErrRefused)
}

func TestHuggingFaceCache(t *testing.T) {
	hub := t.TempDir()
	repo := filepath.Join(hub, "models--org--name")
	sha256, sha1 := strings.Repeat("ab", 32), strings.Repeat("0f", 20)
	write(t, repo, map[string]string{
		"blobs/" + sha256: "weights", "blobs/" + sha1: "config", "blobs/etag-1": "e", "blobs/x.incomplete": "half",
		"blobs/dir/" + sha1: "deep", "refs/main": "c0ffee", "snapshots/c0ffee/README": "plain",
	})
	write(t, hub, map[string]string{"models--evil--x/blobs/" + sha1: "evil", "models--org--name/blobs2/" + sha1: "no"})
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(repo, "blobs", "passwd")))
	snapshot := filepath.Join(repo, "snapshots", "c0ffee")
	require.NoError(t, os.MkdirAll(filepath.Join(snapshot, "sub"), 0o755))
	for name, target := range map[string]string{
		"model.safetensors": "../../blobs/" + sha256, "sub/config.json": "../../../blobs/" + sha1, "odd": "../../blobs/etag-1",
		"half": "../../blobs/x.incomplete", "deep": "../../blobs/dir/" + sha1, "other": "../../../models--evil--x/blobs/" + sha1,
		"refs": "../../refs/main", "blobs2": "../../blobs2/" + sha1, "passwd": "../../blobs/passwd", "blobs": "../../blobs", "gone": "../../blobs/dead",
		"absolute": filepath.Join(repo, "blobs", sha1),
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(snapshot, name)))
	}
	s := openLocal(t, snapshot)
	for name, want := range map[string]struct {
		data   string
		digest Digest
	}{
		"model.safetensors": {"weights", Digest{"sha256", sha256}}, "sub/config.json": {"config", Digest{"git-sha1", sha1}},
		"odd": {"e", Digest{}}, "README": {"plain", Digest{}},
	} {
		got, err := readFile(t, s, name)
		require.NoError(t, err, name)
		require.Equal(t, want.data, got, name)
		info, err := s.Stat(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, want.digest, info.Digest, name)
	}
	refused := refusals(t, s)
	require.Len(t, refused, 9)
	for name := range refused {
		_, err := readFile(t, s, name)
		require.Error(t, err, name)
	}
	require.ErrorIs(t, refused["passwd"], ErrRefused)
	require.ErrorIs(t, refused["other"], ErrRefused)
	require.ErrorIs(t, refused["gone"], ErrNotFound)

	single := openLocal(t, filepath.Join(snapshot, "model.safetensors"))
	info, err := single.Stat(t.Context(), "model.safetensors")
	require.NoError(t, err)
	require.Equal(t, Digest{"sha256", sha256}, info.Digest)
	sub, err := readFile(t, openLocal(t, filepath.Join(snapshot, "sub")), "config.json")
	require.NoError(t, err)
	require.Equal(t, "config", sub, "a folder of a snapshot")
	through := filepath.Join(t.TempDir(), "current")
	require.NoError(t, os.Symlink(snapshot, through))
	data, err := readFile(t, openLocal(t, through), "model.safetensors")
	require.NoError(t, err)
	require.Equal(t, "weights", data, "a snapshot that is reached through a link")
}

// TestHuggingFaceLinkMoves: a snapshot's link that leads to another blob before the read is over is a change.
func TestHuggingFaceLinkMoves(t *testing.T) {
	repo := filepath.Join(t.TempDir(), "datasets--d")
	write(t, repo, map[string]string{"blobs/aaaa": "12345678", "blobs/bbbb": "12345678", "snapshots/1/x": ""})
	link := filepath.Join(repo, "snapshots", "1", "f")
	require.NoError(t, os.Symlink("../../blobs/aaaa", link))
	s := openLocal(t, filepath.Dir(link))
	info, err := s.Stat(t.Context(), "f")
	require.NoError(t, err)
	f, err := s.Open(t.Context(), info)
	require.NoError(t, err)
	defer f.Close()
	r, err := f.NewReader(t.Context(), 0, -1)
	require.NoError(t, err)
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("../../blobs/bbbb", link))
	_, err = io.ReadAll(r)
	require.ErrorIs(t, err, ErrChanged)
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"good": "1", "sub/x": "2"})
	for _, bad := range []string{"\xff", "sub/caf\xe9"} {
		if err := os.WriteFile(filepath.Join(dir, bad), nil, 0o644); err != nil {
			t.Skipf("this file system refuses such names itself: %v", err)
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "d\xfe", "e"), 0o755))
	s := openLocal(t, dir)
	refused := refusals(t, s)
	require.Len(t, refused, 3)
	for _, name := range []string{`"\xff"`, `"sub/caf\xe9"`, `"d\xfe"`} {
		require.ErrorIs(t, refused[name], ErrBadName, name)
		require.ErrorContains(t, refused[name], name)
	}
}

func TestLimits(t *testing.T) {
	dir := t.TempDir()
	deep := strings.Repeat("d/", MaxDepth-1)
	write(t, dir, map[string]string{deep + "f": "1"})
	s := openLocal(t, dir)
	got, err := readFile(t, s, deep+"f")
	require.NoError(t, err)
	require.Equal(t, "1", got)
	_, err = s.List(t.Context())
	require.NoError(t, err, "%d elements are allowed", MaxDepth)
	write(t, dir, map[string]string{deep + "d/f": "1"})
	_, err = s.List(t.Context())
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "32")

	long := t.TempDir()
	t.Chdir(long)
	for range 20 { // one path of 20*250 bytes can't be named to the kernel at once
		name := strings.Repeat("x", 250)
		require.NoError(t, os.Mkdir(name, 0o755))
		require.NoError(t, os.Chdir(name))
	}
	t.Cleanup(func() { removeDeep(long) })
	require.NoError(t, os.Chdir(dir))
	_, err = openLocal(t, long).List(t.Context())
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "4096")

	w := walk{ctx: t.Context(), out: &Listing{Files: make([]Info, MaxFiles)}}
	require.NoError(t, w.full())
	w.out.Refused = append(w.out.Refused, Refusal{})
	require.ErrorIs(t, w.full(), ErrLimit)
	require.ErrorContains(t, w.full(), "100000")
}

// removeDeep removes what is too deep for a path.
func removeDeep(dir string) {
	if r, err := os.OpenRoot(dir); err == nil {
		r.RemoveAll(strings.Repeat("x", 250))
		r.Close()
	}
}

// TestReadFailures injects the errors that the operating system may return while a file is read.
func TestReadFailures(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"f": strings.Repeat("x", 100)})
	s := openLocal(t, dir)
	open := func() *localFile {
		f, err := s.Open(t.Context(), Info{Name: "f", Size: -1})
		require.NoError(t, err)
		return f.(*localFile)
	}
	f := open()
	r, err := f.NewReader(t.Context(), 0, -1)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = io.ReadAll(r)
	require.ErrorIs(t, err, ErrClosed, "a file closed under its reader")
	_, err = f.ReadAt(t.Context(), make([]byte, 1), 0)
	require.ErrorIs(t, err, ErrClosed)
	_, err = f.NewReader(t.Context(), 0, -1)
	require.ErrorIs(t, err, ErrClosed)

	g := open()
	require.NoError(t, g.f.Close())
	g.f, err = os.OpenFile(filepath.Join(dir, "f"), os.O_WRONLY, 0) // EBADF on every read
	require.NoError(t, err)
	defer g.Close()
	r, err = g.NewReader(t.Context(), 0, -1)
	require.NoError(t, err)
	_, err = r.Read(make([]byte, 10))
	require.ErrorIs(t, err, syscall.EBADF)
	_, again := r.Read(make([]byte, 10))
	require.Equal(t, err, again, "errors are sticky")
	_, err = io.Copy(io.Discard, r)
	require.ErrorIs(t, err, syscall.EBADF)
	_, err = g.ReadAt(t.Context(), make([]byte, 10), 0)
	require.ErrorIs(t, err, syscall.EBADF)
}

func TestPermissionDenied(t *testing.T) {
	if os.Getuid() == 0 {
		// Root reads everything; the mapping of errors is what matters.
		require.ErrorIs(t, named(&os.PathError{Op: "open", Path: "x", Err: syscall.EACCES}), os.ErrPermission)
		return
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"f": "x"})
	require.NoError(t, os.Chmod(filepath.Join(dir, "f"), 0))
	_, err := readFile(t, openLocal(t, dir), "f")
	require.ErrorIs(t, err, os.ErrPermission)
}

// TestReaderMeetsAShorterFile cuts a file under a reader whose identity does not know the size, as that of a location
// without sizes, so that only the reader itself can notice.
func TestReaderMeetsAShorterFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write(t, dir, map[string]string{"f": strings.Repeat("x", 1000)})
	s := openLocal(t, dir)
	require.Equal(t, dir, s.String())
	f, err := s.Open(t.Context(), Info{Name: "f", Size: -1})
	require.NoError(t, err)
	defer f.Close()
	require.EqualValues(t, 1000, f.Info().Size, "Open completes the identity")
	f.(*localFile).info = Info{Name: "f", Size: -1}
	r, err := f.NewReader(t.Context(), 0, -1)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 10))
	_, err = io.ReadAll(r)
	require.ErrorIs(t, err, ErrShort)
	require.ErrorContains(t, err, "ends at 10, want 1000")
	_, err = f.NewReader(t.Context(), 0, 11)
	require.ErrorIs(t, err, ErrShort)
	n, err := f.ReadAt(t.Context(), make([]byte, 20), 5)
	require.Equal(t, 5, n)
	require.ErrorIs(t, err, io.EOF)
}

// TestCopyStopsWithItsWriter injects a failing writer and a cancelled context into io.Copy.
func TestCopyStopsWithItsWriter(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"f": strings.Repeat("x", 3*copyBytes)})
	f, err := openLocal(t, dir).Open(t.Context(), Info{Name: "f", Size: -1})
	require.NoError(t, err)
	defer f.Close()
	for n, want := range map[int]error{0: io.ErrShortWrite, copyBytes + 5: io.ErrShortWrite, -1: os.ErrInvalid} {
		r, err := f.NewReader(t.Context(), 0, -1)
		require.NoError(t, err)
		written, err := io.Copy(&limitedWriter{n}, r)
		require.ErrorIs(t, err, want)
		require.EqualValues(t, max(n, 0), written)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := f.NewReader(ctx, 0, -1)
	require.NoError(t, err)
	cancel()
	written, err := io.Copy(io.Discard, r)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, written)
}

// limitedWriter takes left bytes and then fewer than it is given, without an error; -1 fails at once.
type limitedWriter struct{ left int }

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.left < 0 {
		return 0, os.ErrInvalid
	}
	n := min(w.left, len(p))
	w.left -= n
	return n, nil
}

func TestSame(t *testing.T) {
	now := time.Now()
	full := Info{Name: "a", Size: 1, ModTime: now, ETag: "e", FileID: "i", Digest: Digest{"sha256", "00"}}
	for _, c := range []struct {
		change func(*Info)
		same   bool
	}{
		{func(i *Info) {}, true}, {func(i *Info) { i.Name = "b" }, true}, {func(i *Info) { i.Size = 2 }, false},
		{func(i *Info) { i.Size = -1 }, true}, {func(i *Info) { i.ModTime = now.Add(1) }, false}, {func(i *Info) { i.ModTime = time.Time{} }, true},
		{func(i *Info) { i.ETag = "f" }, true}, {func(i *Info) { i.ETag = "" }, true}, {func(i *Info) { i.Digest.Hex = "01" }, false},
		{func(i *Info) { i.FileID = "j" }, true}, {func(i *Info) { i.FileID = "" }, true},
		{func(i *Info) { i.ETag, i.FileID = "f", "j" }, false}, {func(i *Info) { i.ETag, i.FileID = "f", "" }, false},
		{func(i *Info) { i.Digest = Digest{"md5", "01"} }, true}, {func(i *Info) { i.Digest = Digest{} }, true},
	} {
		o := full
		c.change(&o)
		require.Equal(t, c.same, full.Same(o), "%+v", o)
		require.Equal(t, c.same, o.Same(full), "%+v", o)
	}
}

func TestNoDescriptorsLeft(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("counts /proc/self/fd")
	}
	dir := t.TempDir()
	for i := range 50 {
		write(t, dir, map[string]string{fmt.Sprintf("d%d/f", i): "x"})
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	count := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(e)
	}
	before := count()
	for range 20 {
		s, err := Local{}.Open(t.Context(), dir)
		require.NoError(t, err)
		_, err = s.List(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.List(ctx)
		require.Error(t, err)
		for _, name := range []string{"d1/f", "fifo", "nothing"} {
			readFile(t, s, name)
		}
		f, err := s.Open(t.Context(), Info{Name: "d1/f", Size: 77})
		require.ErrorIs(t, err, ErrChanged)
		require.Nil(t, f)
		require.NoError(t, s.Close())
	}
	require.LessOrEqual(t, count(), before)
}

// renumbered is a file system that gives a file another inode at every look-up, as FUSE and some network ones do.
type renumbered struct {
	fs.FileInfo
	ino uint64
}

func (r renumbered) Sys() any {
	st := *r.FileInfo.Sys().(*syscall.Stat_t)
	st.Ino = r.ino
	return &st
}

// TestInodesThatChange takes a file for the same one when only its inode differs, and for another one when it was
// replaced by one of the same size and time.
func TestInodesThatChange(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "one"})
	path := filepath.Join(dir, "a")
	stat := func(ino uint64) Info {
		fi, err := os.Stat(path)
		require.NoError(t, err)
		return place{name: "a"}.info(renumbered{fi, ino})
	}
	first := stat(1)
	require.True(t, first.Same(stat(2)), "another inode, the same size and times")
	require.Equal(t, first.ETag, stat(2).ETag, "what an import compares with what an earlier one has stored")

	fi, err := os.Stat(path)
	require.NoError(t, err)
	write(t, dir, map[string]string{"b": "two"})
	require.NoError(t, os.Chtimes(filepath.Join(dir, "b"), fi.ModTime(), fi.ModTime()))
	require.NoError(t, os.Rename(filepath.Join(dir, "b"), path))
	require.False(t, first.Same(stat(3)), "another file of the same size and modification time")

	require.NoError(t, os.Chmod(path, 0o600))
	before := stat(4)
	require.NoError(t, os.Link(path, path+"2"))
	require.NoError(t, os.Chmod(path, 0o640))
	require.True(t, before.Same(stat(4)), "another mode and link of the same inode")
}
