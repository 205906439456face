package source

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinkErrors names link and target of every link that is not followed, and says which ones leave the source.
func TestLinkErrors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"secret": "s", "outside/f": "s", "root/real": "r", "root/sub/x": "x"})
	root := filepath.Join(dir, "root")
	links := map[string]struct {
		target       string
		outside, dir bool
		is           error
	}{
		"up": {"../secret", true, false, ErrRefused}, "abs": {filepath.Join(dir, "secret"), true, false, ErrRefused},
		"updir": {"../outside", true, true, ErrRefused}, "hop": {"up", true, false, ErrRefused}, "gone": {"nothing", false, false, ErrNotFound},
		"loop": {"loop", false, false, ErrRefused}, "indir": {"sub", false, true, ErrRefused}, "self": {".", false, true, ErrRefused},
	}
	for name, c := range links {
		require.NoError(t, os.Symlink(c.target, filepath.Join(root, name)))
	}
	refused := refusals(t, openLocal(t, root))
	require.Len(t, refused, len(links))
	for name, c := range links {
		err := refused[name]
		var l *LinkError
		require.ErrorAs(t, err, &l, name)
		require.Equal(t, []any{name, c.target, c.outside, c.dir}, []any{l.Name, l.Target, l.Outside, l.Dir}, name)
		require.ErrorIs(t, err, c.is)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, c.target)
	}
}

// TestFollowLinks reads through links that leave the source, also those to directories, and ends where they form a ring.
func TestFollowLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"weights": "w", "outside/f": "f", "outside/deep/g": "g", "root/real": "r", "root/sub/x": "x"})
	root := filepath.Join(dir, "root")
	for name, target := range map[string]string{
		"up": "../weights", "abs": filepath.Join(dir, "weights"), "updir": "../outside", "indir": "sub", "self": ".", "loop": "loop",
		"gone": "../nothing", "sub/back": "../sub", "parent": "..",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, name)))
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.Symlink("../pipe", filepath.Join(root, "pipe")))
	s := openLocal(t, root)
	s.(LinkFollower).FollowLinks()
	l, err := s.List(t.Context())
	require.NoError(t, err)
	var names []string
	for _, f := range l.Files {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"abs", "indir/x", "real", "sub/x", "up", "updir/deep/g", "updir/f"}, names)
	for name, want := range map[string]string{"up": "w", "abs": "w", "updir/f": "f", "updir/deep/g": "g", "indir/x": "x", "real": "r"} {
		got, err := readFile(t, s, name)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	refused := map[string]error{}
	for _, r := range l.Refused {
		refused[r.Name] = r.Err
	}
	require.Len(t, refused, 7)
	for _, ring := range []string{"self", "loop", "sub/back", "parent", "indir/back"} {
		require.ErrorIs(t, refused[ring], ErrRefused, ring)
	}
	require.ErrorIs(t, refused["gone"], ErrNotFound)
	require.ErrorIs(t, refused["pipe"], ErrRefused)
	require.NoError(t, s.Close())
	_, err = s.Stat(t.Context(), "up")
	require.ErrorIs(t, err, ErrClosed)
}

// TestRepositoryFolder opens a folder of the Hugging Face cache: it stands for its only snapshot.
func TestRepositoryFolder(t *testing.T) {
	repo := filepath.Join(t.TempDir(), "models--org--name")
	write(t, repo, map[string]string{"blobs/aaaa": "12345678", "refs/main": "c0ffee\n", "snapshots/c0ffee/config.json": "{}"})
	require.NoError(t, os.Symlink("../../blobs/aaaa", filepath.Join(repo, "snapshots", "c0ffee", "w")))
	s := openLocal(t, repo)
	require.Equal(t, filepath.Join(repo, "snapshots", "c0ffee"), s.String())
	got, err := readFile(t, s, "w")
	require.NoError(t, err)
	require.Equal(t, "12345678", got)

	write(t, repo, map[string]string{"snapshots/beef/config.json": "{}"})
	_, err = Local{}.Open(t.Context(), repo)
	require.ErrorIs(t, err, ErrBadLocation)
	for _, part := range []string{"name one of these", filepath.Join(repo, "snapshots", "beef"), filepath.Join(repo, "snapshots", "c0ffee") + `" (main)`} {
		require.ErrorContains(t, err, part)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(repo, "snapshots")))
	require.NoError(t, os.Mkdir(filepath.Join(repo, "snapshots"), 0o755))
	_, err = Local{}.Open(t.Context(), repo)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, "without a snapshot")
	require.NoError(t, os.Remove(filepath.Join(repo, "snapshots")))
	s = openLocal(t, repo)
	require.Equal(t, repo, s.String(), "a directory that is only called like one")
	require.False(t, errors.Is(s.Close(), ErrClosed))
}
