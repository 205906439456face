//go:build cgo

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// A tenant that is asked of a client which another thread closes meanwhile.
func TestTenantOfAClosedPoolOpensNone(t *testing.T) {
	c := new(client)
	q := poolRequest{name: t.Name(), opts: store.Options{MemoryBytes: store.MinMemoryBytes}}
	require.NoError(t, c.connect(q, "default", ""))
	found := c.seat.Load()
	require.NoError(t, c.close())

	require.ErrorIs(t, new(client).connect(found.samePool(), "tenant", ""), store.ErrClosed)
	require.Empty(t, pools.open)
}
