package ssd_test

import (
	"context"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

// beforeCreate calls a function before an own file is made.
type beforeCreate struct {
	*ssdtest.FaultFS
	call func()
}

func (b *beforeCreate) OpenFile(name string, flag int, perm fs.FileMode) (ssd.File, error) {
	if b.call != nil && flag&os.O_CREATE != 0 && strings.HasSuffix(name, ".obj") {
		b.call()
	}
	return b.FaultFS.OpenFile(name, flag, perm)
}

// TestSyncWhileAnOwnFileIsMade loses power after the Sync of an own file's writer. Another's Sync has come between the
// beginning of the file and its name.
func TestSyncWhileAnOwnFileIsMade(t *testing.T) {
	ctx := context.Background()
	x := &beforeCreate{FaultFS: new(ssdtest.FaultFS)}
	tier := open(t, x, "/tier", ssd.Options{})
	o := newObject(newRand(t), "key", 10_000)
	ssdtest.NoError(t, add(tier, newObject(newRand(t), "other", 10)))
	x.call = func() { ssdtest.NoError(t, tier.Sync(ctx)) }
	w, err := tier.CreateOwn(o.head.Size)
	ssdtest.NoError(t, err)
	_, err = w.Write(o.data)
	ssdtest.NoError(t, err)
	ssdtest.NoError(t, w.Finish(ctx))
	_, err = tier.AppendHead(ctx, o.head, w.ID())
	ssdtest.NoError(t, err)
	ssdtest.NoError(t, tier.Sync(ctx))
	name := tier.OwnPath(w.ID())
	x.Crash(nil)
	if _, err := x.Stat(name); err != nil {
		t.Fatalf("after Sync and a power failure: %v", err)
	}
}
