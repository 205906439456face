package weight

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// TestChildOfMemoryStore has a child use a directory that leads into this process's memory after all loads here were
// closed: what it reads there stays what it was, whatever this process opens meanwhile.
func TestChildOfMemoryStore(t *testing.T) {
	for name, opts := range map[string]store.Options{"memory": {}, "volatile": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			e := newEnv(t, opts)
			e.put(2*mib, 1)
			q := e.request(ref)
			q.Volatile = true
			_, err := e.m.Import(ctx, q)
			require.NoError(t, err)
			man := e.mustManifest(ref)

			l := e.load(ref)
			dir := l.Dir()
			child := exec.Command("sleep", "60")
			child.ExtraFiles = []*os.File{l.LockFile()}
			require.NoError(t, child.Start())
			require.NoError(t, l.Close())
			var opened []*os.File
			for range 20 { // which take the numbers of what was closed
				f, err := os.Open("/etc/passwd")
				require.NoError(t, err)
				opened = append(opened, f)
			}
			same := func() {
				for _, f := range man.Files {
					require.Equal(t, f.SHA256, sha(read(t, filepath.Join(dir, f.Name))), f.Name)
				}
			}
			same()
			require.ErrorIs(t, e.m.Delete(ctx, ref), ErrInUse)

			l = e.load(ref) // which joins the child
			require.Equal(t, dir, l.Dir())
			same()
			_, err = l.Detach()
			require.ErrorIs(t, err, ErrInvalid)
			require.NoError(t, l.Close())
			same()

			require.NoError(t, child.Process.Kill())
			_ = child.Wait()
			for _, f := range opened {
				require.NoError(t, f.Close())
			}
			require.NoError(t, e.m.Delete(ctx, ref))
			e.nothing()
		})
	}
}
