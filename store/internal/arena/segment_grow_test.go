package arena

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A segment takes addresses for its DataBytes only, and an attach with more extends it.
func TestSegmentIsExtended(t *testing.T) {
	o := testOptions(filepath.Join(shmDir(t), "segment"))
	o.DataBytes, o.MaxDataBytes = 8<<20, 1<<30
	s, err := CreateSegment(o)
	require.NoError(t, err)
	require.Len(t, s.Data(), 8<<20)
	require.NoError(t, s.Reserve(DataRegion, 6<<20, StepBytes))
	require.Error(t, s.Reserve(DataRegion, 8<<20, StepBytes))
	copy(s.Data()[6<<20:], "data")
	require.NoError(t, s.Close(false))
	for _, want := range []struct{ ask, get int64 }{{4 << 20, 8 << 20}, {0, 8 << 20}, {16 << 20, 16 << 20}, {8 << 20, 16 << 20}, {2 << 30, 1 << 30}} {
		o.DataBytes = want.ask
		s, err = AttachSegment(o)
		require.NoError(t, err)
		require.Len(t, s.Data(), int(want.get))
		require.Equal(t, []Extent{{6 << 20, StepBytes}}, ranges(s, DataRegion))
		require.Equal(t, "data", string(s.Data()[6<<20:][:4]))
		require.NoError(t, s.Close(false))
	}
	s, err = AttachSegment(o)
	require.NoError(t, err)
	require.NoError(t, s.Reserve(DataRegion, 1<<30-StepBytes, StepBytes))
	require.NoError(t, s.Close(true))
}

// A segment of a format that does not say whose it is belongs to nobody: a copy of the directory may have left it.
func TestSegmentWithoutOwner(t *testing.T) {
	o := testOptions(filepath.Join(shmDir(t), "segment"))
	for format := uint32(1); format < ownedFormat; format++ {
		s, err := CreateSegment(o)
		require.NoError(t, err)
		s.header.format = format
		copy(s.mem, s.header.encode())
		require.NoError(t, s.Close(false))
		_, err = AttachSegment(o)
		require.ErrorIs(t, err, ErrStale)
	}
}
