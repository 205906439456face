//go:build !norocksdb

package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A damaged catalogue is refused by every command, loses nothing by that, and repair brings the revision back.
func TestProgramsRepair(t *testing.T) {
	dir, ref := t.TempDir(), revision("org/m", "1")
	r := run(t, dir, "mooncake_weight_import", with(ref, "--source", model(t, 2, 2<<20))...)
	require.Equal(t, 0, r.code, "%+v", r)
	r = run(t, dir, "mooncake_weight", "repair")
	require.Equal(t, 0, r.code, "%+v", r)
	require.Contains(t, r.out, "nothing is damaged")

	damageEach(t, filepath.Join(dir, "catalogue", "*.sst"))
	for _, command := range []string{"list", "usage"} {
		r = run(t, dir, "mooncake_weight", command)
		require.Equal(t, 1, r.code, "%+v", r)
		require.Contains(t, r.err, "corrupt")
		require.Contains(t, r.err, "repair")
	}
	r = run(t, dir, "mooncake_weight", "repair", "--json")
	require.Equal(t, 0, r.code, "%+v", r)
	v := parse(t, r)
	require.Contains(t, v["damage"], "corrupt")
	require.DirExists(t, v["backup"].(string))
	require.NotEmpty(t, v["adopted"])
	r = run(t, dir, "mooncake_weight_check", with(ref, "--deep")...)
	require.Equal(t, 0, r.code, "%+v", r)
	r = run(t, dir, "mooncake_weight", with([]string{"delete"}, ref...)...)
	require.Equal(t, 0, r.code, "%+v", r)
}

// damageEach flips a bit near the start of each file.
func damageEach(t *testing.T, pattern string) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		p, err := os.ReadFile(name)
		require.NoError(t, err)
		p[60] ^= 1
		require.NoError(t, os.WriteFile(name, p, 0o600))
	}
}
