package ssd

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBuffersTouchFew takes two buffers of many over and over: no third one is ever touched.
func TestBuffersTouchFew(t *testing.T) {
	ctx := context.Background()
	b, err := newBuffers(8, BlockBytes)
	require.NoError(t, err)
	seen := make(map[*byte]bool)
	for range 20 {
		one, err := b.get(ctx)
		require.NoError(t, err)
		two := b.tryGet()
		require.Len(t, two, BlockBytes)
		seen[&one[0]], seen[&two[0]] = true, true
		b.put(one)
		b.put(two)
	}
	require.Len(t, seen, 2)
	require.NoError(t, b.close())
}

func TestBuffersAllInUse(t *testing.T) {
	b, err := newBuffers(2, BlockBytes)
	require.NoError(t, err)
	one, two := b.take(), b.take()
	require.NotSame(t, &one[0], &two[0])
	require.Nil(t, b.tryGet())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = b.get(ctx)
	require.ErrorIs(t, err, context.Canceled)
	b.put(two)
	require.Same(t, &two[0], &b.take()[0])
	require.PanicsWithValue(t, "ssd: BUG: staging buffer in use at close", func() { _ = b.close() })
	b.put(one)
	b.put(two)
	require.NoError(t, b.close())
}
