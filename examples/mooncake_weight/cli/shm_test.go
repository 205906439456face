//go:build !norocksdb

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// TestShm lists and frees memory: what is kept stays, what is abandoned goes.
func TestShm(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "mooncake-cli-")
	require.NoError(t, err)
	defer os.RemoveAll(shm)
	parent := t.TempDir()
	open := func(name string) *store.Store {
		s, err := store.Open(context.Background(), store.Options{Dir: filepath.Join(parent, name), ShmDir: shm, MemoryBytes: store.MinMemoryBytes})
		require.NoError(t, err)
		return s
	}
	kept, gone, used := open("kept"), open("gone"), open("used")
	defer used.Close()
	require.NoError(t, kept.Close())
	require.NoError(t, gone.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(parent, "gone")))
	run := func(args ...string) (r struct {
		Freed  bool
		Bytes  int64
		Memory []shmRow
	}) {
		var out, errOut bytes.Buffer
		require.Zero(t, Main("mooncake_weight", append([]string{"shm", "--json", "--shm-dir", shm}, args...), &out, &errOut), errOut.String())
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		return r
	}
	states := map[string]store.LeftoverState{}
	for _, row := range run().Memory {
		states[filepath.Base(row.Dir)] = row.State
		require.Positive(t, row.Bytes)
		require.Equal(t, os.Getpid(), row.PID)
		require.Equal(t, row.State == store.LeftoverInUse, row.Alive)
	}
	require.Equal(t, map[string]store.LeftoverState{"kept": store.LeftoverKept, "gone": store.LeftoverAbandoned, "used": store.LeftoverInUse}, states)
	r := run("--free")
	require.True(t, r.Freed)
	require.Len(t, r.Memory, 1)
	require.Equal(t, filepath.Join(parent, "gone"), r.Memory[0].Dir)
	require.Len(t, run().Memory, 2)
	var out, errOut bytes.Buffer
	require.Zero(t, Main("mooncake_weight", []string{"shm", "--shm-dir", shm}, &out, &errOut), errOut.String())
	require.Contains(t, out.String(), filepath.Join(parent, "kept"))
	require.Contains(t, out.String(), "dead")
}
