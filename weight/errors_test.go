package weight

import (
	"context"
	stderrors "errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

func TestCode(t *testing.T) {
	_, gone := os.Open("/proc/none")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{ErrInvalid, -600}, {ErrNotFound, -704}, {ErrNotReady, -703}, {ErrDifferent, -705}, {ErrInUse, -706}, {ErrSource, -2101},
		{ErrDamaged, -2102}, {ErrImporting, -2103}, {ErrNoTensor, -2104}, {ErrClosed, -1010}, {ErrNoRoom, -200}, {ErrNewer, -300},
		{ErrUnreadable, -1502},
		{roomError{}, -200},
		{damaged{store.ErrChecksum}, -2102},
		{stderrors.Join(context.Canceled, ErrInUse), -706},
		{store.ErrChecksum, -801}, {store.ErrTampered, -1106}, {store.ErrNoSpace, -200}, {store.ErrInternal, -1},
		{context.Canceled, -2005}, {context.DeadlineExceeded, -2006},
		{gone, -1100}, {fs.ErrPermission, -1101}, {&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, -1101},
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, -200},
		{errors.New("other"), -1},
	} {
		require.Equal(t, c.want, Code(c.err), "%v", c.err)
		if c.err != nil {
			require.Equal(t, c.want, Code(errors.WithMessagef(fmt.Errorf("file %q: %w", "f", c.err), "import")), "wrapped %v", c.err)
		}
	}
}
