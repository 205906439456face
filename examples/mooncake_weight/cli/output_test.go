//go:build !norocksdb

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutputIsPlain imports from a directory whose files have names that would steer a terminal.
func TestOutputIsPlain(t *testing.T) {
	dir, src := t.TempDir(), model(t, 1, 1000)
	require.NoError(t, os.WriteFile(filepath.Join(src, "a\x1b[2Jb"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(src, "c\nd"), nil, 0o644))
	r := run(t, dir, "mooncake_weight_import", with(revision("m", "1"), "--source", src)...)
	require.Equal(t, 0, r.code, "%+v", r)
	require.NotContains(t, r.out+r.err, "\x1b")
	require.Contains(t, r.out, `left out  "a\x1b[2Jb": `)
	require.Contains(t, r.out, `left out  "c\nd": `)
}

// TestSourceIsNamedWhole keeps a source that can be found again from another directory.
func TestSourceIsNamedWhole(t *testing.T) {
	dir, src := t.TempDir(), model(t, 1, 1000)
	c := exec.Command(filepath.Join(bin, "mooncake_weight"), with([]string{"import"}, with(revision("m", "1"), "--dir", dir, "--source", ".")...)...)
	c.Dir = src
	require.NoError(t, c.Run())
	r := run(t, dir, "mooncake_weight", "list")
	require.Contains(t, r.out, src)
}

// TestUsageErrorsForMachines answers --json with JSON, whatever is wrong.
func TestUsageErrorsForMachines(t *testing.T) {
	for _, args := range [][]string{
		{"import", "--json"}, {"check", "--json", "--model-id", "m"}, {"list", "--json", "more"},
		{"delete", "--json", "--model-id", "m", "--revision", "a/b"}, {"load", "--json"},
	} {
		r := run(t, t.TempDir(), "mooncake_weight", args...)
		require.Equal(t, exitUsage, r.code, "%+v", r)
		v := parse(t, r)
		require.Equal(t, false, v["ok"])
		require.NotEmpty(t, v["error"])
	}
}

// TestImportChooses shows what an import leaves out, in text and for machines, and takes the patterns.
func TestImportChooses(t *testing.T) {
	dir, src := t.TempDir(), model(t, 1, 1000)
	write := func(name, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(src, name), []byte(content), 0o644))
	}
	write("training_args.bin", "x")
	write(".git/config", "x")
	write("notes/a.md", "x")
	write("code.py", "x")
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(src, "host")))
	args := with(revision("m", "1"), "--source", src)
	r := run(t, dir, "mooncake_weight_import", args...)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "/etc/passwd")
	require.Contains(t, r.err, "--follow-links")
	args = with(args, "--follow-links")
	r = run(t, dir, "mooncake_weight_import", with(args, "--exclude", "nothing*")...)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, `"nothing*" matches no file`)

	r = run(t, dir, "mooncake_weight_import", with(args, "--exclude", "notes/", "--exclude", "*.py", "--include", ".git/")...)
	require.Equal(t, exitOK, r.code, "%+v", r)
	require.Contains(t, r.out, "left out  training_args.bin: training state\n")
	require.Contains(t, r.out, `left out  notes/a.md: excluded by "notes/"`)
	require.Contains(t, r.out, "left out  code.py: ")
	require.Contains(t, r.out, "4 files")

	r = run(t, dir, "mooncake_weight_import", with(revision("m", "2"), "--source", src, "--follow-links", "--json")...)
	require.Equal(t, exitOK, r.code, "%+v", r)
	want := []any{map[string]any{"name": ".git/", "reason": "version control"}, map[string]any{"name": "training_args.bin", "reason": "training state"}}
	result := parse(t, r)["result"].(map[string]any)
	require.Equal(t, want, result["skipped"])
	require.Equal(t, want, result["manifest"].(map[string]any)["skipped"], "and the manifest keeps it")
}
