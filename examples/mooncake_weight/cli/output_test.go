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
