package weight

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/store"
)

// TestLocalLinks imports a directory with symbolic links and what is no file.
func TestLocalLinks(t *testing.T) {
	ctx := context.Background()
	m, _ := openTest(t, store.Options{})
	src, out := t.TempDir(), t.TempDir()
	p := shard(map[string]int{"a": 2 * mib}, 1)
	require.NoError(t, os.MkdirAll(filepath.Join(src, "real"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(src, "real", "w"), p, 0o644))
	require.NoError(t, os.Symlink("real/w", filepath.Join(src, "w.safetensors")))
	require.NoError(t, os.WriteFile(filepath.Join(out, "secret"), []byte("{}"), 0o644))
	require.NoError(t, os.Symlink("nothing", filepath.Join(src, "NOTES")))
	require.NoError(t, os.Symlink("loop", filepath.Join(src, "loop")))
	require.NoError(t, unix.Mkfifo(filepath.Join(src, "pipe"), 0o644))
	r, err := m.Import(ctx, ImportRequest{Ref: ref, Source: src})
	require.NoError(t, err)
	require.Equal(t, []string{"real/w", "w.safetensors"}, names(r.Manifest.Files))
	require.Equal(t, sha(p), r.Manifest.Files[1].SHA256)
	left := map[string]string{}
	for _, s := range r.Skipped {
		left[s.Name] = s.Reason
	}
	require.Contains(t, left["NOTES"], `leads to "nothing"`)
	require.Contains(t, left["loop"], "refused")
	require.Contains(t, left["pipe"], "FIFO")

	for name, make := range map[string]func(path string) error{
		"notes to elsewhere": func(p string) error { return os.Symlink(filepath.Join(out, "secret"), p) },
		"linked folder":      func(p string) error { return os.Symlink(out, p) },
		"config.json":        func(p string) error { return os.Symlink(filepath.Join(out, "secret"), p) },
		"tokenizer.json":     func(p string) error { return unix.Mkfifo(p, 0o644) },
		"vocab.json":         func(p string) error { return os.Symlink("nothing", p) },
		"x.safetensors":      func(p string) error { return os.Symlink("../../etc/passwd", p) },
		"bad-\xff-name.json": func(p string) error { return os.WriteFile(p, []byte("{}"), 0o644) },
	} {
		require.NoError(t, make(filepath.Join(src, name)))
		_, err := m.Import(ctx, ImportRequest{Ref: Ref{"m", "2"}, Source: src})
		if strings.HasPrefix(name, "bad") {
			require.NoError(t, err) // the quoted name is not one that an engine needs
		} else {
			require.Error(t, err, name)
			require.ErrorContains(t, err, name)
			if target, err2 := os.Readlink(filepath.Join(src, name)); err2 == nil {
				require.ErrorContains(t, err, target)
			}
		}
		require.NoError(t, os.Remove(filepath.Join(src, name)))
	}
	require.NoError(t, m.Delete(ctx, Ref{"m", "2"}))
}

// TestFollowLinks imports a directory of links to another: the error without FollowLinks names the link, its target and the
// option.
func TestFollowLinks(t *testing.T) {
	ctx := context.Background()
	m, _ := openTest(t, store.Options{})
	src, out := t.TempDir(), t.TempDir()
	p := shard(map[string]int{"a": 2 * mib}, 1)
	require.NoError(t, os.WriteFile(filepath.Join(out, "w"), p, 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(out, "pooling"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(out, "pooling", "config.json"), []byte("{}"), 0o644))
	require.NoError(t, os.Symlink(filepath.Join(out, "w"), filepath.Join(src, "model.safetensors")))
	require.NoError(t, os.Symlink(filepath.Join(out, "pooling"), filepath.Join(src, "1_Pooling")))
	q := ImportRequest{Ref: ref, Source: src}
	_, err := m.Import(ctx, q)
	require.ErrorIs(t, err, source.ErrRefused)
	for _, part := range []string{"1_Pooling", filepath.Join(out, "pooling"), "FollowLinks", "--follow-links"} {
		require.ErrorContains(t, err, part)
	}
	q.FollowLinks = true
	r, err := m.Import(ctx, q)
	require.NoError(t, err)
	require.Equal(t, []string{"1_Pooling/config.json", "model.safetensors"}, names(r.Manifest.Files))
	rep, err := m.Check(ctx, ref, Deep)
	require.NoError(t, err)
	require.NoError(t, rep.Err())

	e := newEnv(t, store.Options{})
	e.put(1000, 1)
	q = e.request(ref)
	q.FollowLinks = true
	_, err = e.m.Import(ctx, q)
	require.ErrorIs(t, err, ErrInvalid, "a source without links")
}

// TestHubCache imports a snapshot of the Hugging Face cache: links into its blobs, whose names are digests.
func TestHubCache(t *testing.T) {
	ctx := context.Background()
	m, _ := openTest(t, store.Options{})
	root := filepath.Join(t.TempDir(), "models--org--m")
	snapshot := filepath.Join(root, "snapshots", strings.Repeat("ab", 20))
	blobs := filepath.Join(root, "blobs")
	require.NoError(t, os.MkdirAll(snapshot, 0o755))
	require.NoError(t, os.MkdirAll(blobs, 0o755))
	p := shard(map[string]int{"a": 2 * mib}, 1)
	require.NoError(t, os.WriteFile(filepath.Join(blobs, sha(p)), p, 0o644))
	require.NoError(t, os.Symlink("../../blobs/"+sha(p), filepath.Join(snapshot, "model.safetensors")))
	r, err := m.Import(ctx, ImportRequest{Ref: ref, Source: snapshot})
	require.NoError(t, err)
	require.Equal(t, sha(p), r.Manifest.Files[0].SHA256)
	require.NoError(t, os.WriteFile(filepath.Join(snapshot, "config.json"), []byte("{}"), 0o644))
	r, err = m.Import(ctx, ImportRequest{Ref: Ref{"org/m", "folder"}, Source: root}) // of the repository: its only snapshot
	require.NoError(t, err)
	require.Equal(t, []string{"config.json", "model.safetensors"}, names(r.Manifest.Files))
	require.Equal(t, snapshot, r.Manifest.Source)
	other := filepath.Join(root, "snapshots", strings.Repeat("cd", 20))
	require.NoError(t, os.Mkdir(other, 0o755))
	_, err = m.Import(ctx, ImportRequest{Ref: Ref{"org/m", "which"}, Source: root})
	require.ErrorContains(t, err, "name one of these")
	require.ErrorContains(t, err, snapshot)
	require.ErrorContains(t, err, other)

	bad := append([]byte(nil), p...)
	bad[len(bad)-1] ^= 1 // the blob's name says something else
	require.NoError(t, os.WriteFile(filepath.Join(blobs, sha(p)), bad, 0o644))
	_, err = m.Import(ctx, ImportRequest{Ref: Ref{"org/m", "2"}, Source: snapshot})
	require.ErrorIs(t, err, ErrSource)
	require.ErrorContains(t, err, "model.safetensors")
}

// TestLocalFileReplaced renames another file over one that is listed: the source says so, nothing is mixed.
func TestLocalFileReplaced(t *testing.T) {
	src := t.TempDir()
	path := filepath.Join(src, "w.safetensors")
	require.NoError(t, os.WriteFile(path, shard(map[string]int{"a": 2 * mib}, 1), 0o644))
	l, err := source.Local{}.Open(context.Background(), src)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	list, err := l.List(context.Background())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path+".new", shard(map[string]int{"a": 2 * mib}, 2), 0o644))
	require.NoError(t, os.Rename(path+".new", path))
	_, err = readHeader(context.Background(), l, list.Files[0])
	require.ErrorIs(t, err, source.ErrChanged)
}
