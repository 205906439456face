package sum

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fenced returns n bytes that end, or begin, where their page does, with pages beside it that fault.
func fenced(t *testing.T, n int, atEnd bool) []byte {
	t.Helper()
	page := unix.Getpagesize()
	body := (n + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, body+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	require.NoError(t, unix.Mprotect(m[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(m[page+body:], unix.PROT_NONE))
	if atEnd {
		return m[page+body-n : page+body : page+body]
	}
	return m[page : page+n : page+n]
}

func TestPageEdges(t *testing.T) {
	r := seeded(t)
	for _, n := range []int{1, 31, 32, 63, 64, 65, 4095, 4096, 8191, 8192, 12345, 32767, 32768, 65535, 65536, 65537, 262144,
		262145, 300001} {
		for _, atEnd := range []bool{false, true} {
			src, dst := fenced(t, n, atEnd), fenced(t, n, atEnd)
			fill(r, src)
			want := naiveTable(src)
			require.Equal(t, want, HashChunks(src, nil), "%d bytes, at the end %v", n, atEnd)
			require.Equal(t, want, CopyHashChunks(dst, src, nil), "%d bytes, at the end %v", n, atEnd)
			require.Equal(t, want, naiveTable(dst))
			require.Equal(t, CopyHash(dst, src), Hash(src))
			clear(dst)
			Copy(dst, src)
			require.Equal(t, want, naiveTable(dst))
			var h Hasher
			h.CopyTo(dst[:n/3], src[:n/3])
			h.CopyTo(dst[n/3:], src[n/3:])
			require.Equal(t, want, h.Table())
		}
	}
}
