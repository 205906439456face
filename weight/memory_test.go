package weight

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// rssAnon is the anonymous memory of this process, which the store's own (shared, from a memory file) is no part of.
func rssAnon() int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if kib, ok := strings.CutPrefix(lines.Text(), "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(kib, "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// childImport imports and prints the peak of its anonymous memory beyond that before the import.
func childImport(dir, src string) error {
	ctx := context.Background()
	o := store.Options{Dir: dir, VolatileMemory: dir != "", MemoryBytes: 32 << 20}
	if dir == "" {
		o.MemoryBytes = 3 << 30
	}
	s, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	m, err := Open(ctx, s, Options{})
	if err != nil {
		return err
	}
	var peak atomic.Int64
	before := rssAnon()
	go func() {
		for {
			peak.Store(max(peak.Load(), rssAnon()))
			time.Sleep(2 * time.Millisecond)
		}
	}()
	r, err := m.Import(ctx, ImportRequest{Ref: ref, Source: src})
	if err != nil {
		return err
	}
	fmt.Println(peak.Load()-before, r.Manifest.Size)
	if err := m.Close(); err != nil {
		return err
	}
	return s.Close()
}

// sparse writes a safetensors file with one tensor of n zero bytes, which take no room.
func sparse(t *testing.T, path string, n int64) {
	h, err := json.Marshal(map[string]any{"t" + filepath.Base(path): map[string]any{"dtype": "U8", "shape": []int64{n}, "data_offsets": []int64{0, n}}})
	require.NoError(t, err)
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(8+int64(len(h))+n))
	require.NoError(t, f.Close())
}

// TestImportMemory imports two large files side by side: 64 MiB at most beyond what is stored, whatever their size.
// WEIGHT_BIG is the number of MiB, 128 by default.
func TestImportMemory(t *testing.T) {
	size := int64(128)
	if s := os.Getenv("WEIGHT_BIG"); s != "" {
		var err error
		size, err = strconv.ParseInt(s, 10, 64)
		require.NoError(t, err)
	}
	src := t.TempDir()
	sparse(t, filepath.Join(src, "a.safetensors"), size<<20/2)
	sparse(t, filepath.Join(src, "b.safetensors"), size<<20/2-8)
	for name, dir := range map[string]string{"memory": "", "directory": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			if dir != "" {
				needsDirectory(t)
			}
			p := start(t, "import", dir, src)
			out := strings.Fields(p.line(t))
			require.NoError(t, p.Wait())
			require.Len(t, out, 2)
			peak, err := strconv.ParseInt(out[0], 10, 64)
			require.NoError(t, err)
			t.Logf("%s bytes imported, peak of anonymous memory %d KiB", out[1], peak>>10)
			require.LessOrEqual(t, peak, int64(64<<20))
		})
	}
}
