package arena

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestMapPrivate(t *testing.T) {
	for _, n := range []int64{1, 4096, 5000, 3 << 20} {
		mem, err := MapPrivate(n, MemLimits{})
		require.NoError(t, err)
		require.Len(t, mem, int(n))
		require.Equal(t, make([]byte, n), mem)
		mem[0], mem[n-1] = 1, 2
		start := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
		smaps, err := os.ReadFile("/proc/self/smaps")
		require.NoError(t, err)
		flags := regexp.MustCompile(fmt.Sprintf(`(?ms)^0*%x-\S+ rw-p .*?^VmFlags: (.*?)$`, start)).FindSubmatch(smaps)
		require.NotNil(t, flags)
		require.Contains(t, string(flags[1]), "dc", "left out of forks")
		require.Contains(t, string(flags[1]), "dd", "left out of dumps")
		require.NoError(t, UnmapPrivate(mem))
	}
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "proc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc", "meminfo"), []byte("MemAvailable: 8 kB\n"), 0o644))
	poor := MemLimits{Root: root, Headroom: -1}
	_, err := MapPrivate(8193, poor)
	require.ErrorIs(t, err, ErrLimit)
	mem, err := MapPrivate(8192, poor)
	require.NoError(t, err)
	require.NoError(t, UnmapPrivate(mem))
	_, err = MapPrivate(1<<60, MemLimits{Root: t.TempDir()})
	require.ErrorIs(t, err, ErrLimit)
}
