package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {ErrNotFound, -704}, {ErrInternal, -1}, {errors.New("other"), -1},
		{context.Canceled, -2005}, {context.DeadlineExceeded, -2006},
		{fs.ErrNotExist, -1100}, {syscall.ENOENT, -1100}, {fs.ErrPermission, -1101}, {syscall.EPERM, -1101}, {syscall.ENOSPC, -200},
		{durabilityError{syscall.ENOSPC}, -1503}, {tierError{syscall.ENOSPC}, -1102}, // the store's own name comes first
		{durabilityError{ErrInternal}, -1503}, {errors.Join(syscall.EIO, context.Canceled), -2005},
		{fmt.Errorf("%w, then %w", ErrInternal, context.Canceled), -1},
		{Recovered(ErrNotFound), -1},
	} {
		require.Equal(t, c.want, Code(c.err), "%v", c.err)
		if c.err != nil {
			require.Equal(t, c.want, Code(fmt.Errorf("put: %w", c.err)), "wrapped %v", c.err)
		}
	}
}
