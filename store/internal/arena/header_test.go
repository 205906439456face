package arena

import (
	"encoding/binary"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

// rehash sets a word of a header and makes its hash right again.
func rehash(p []byte, at int, v uint32) []byte {
	binary.LittleEndian.PutUint32(p[at:], v)
	binary.LittleEndian.PutUint64(p[headerBytes-8:], xxhash.Sum64(p[:headerBytes-8]))
	return p
}

func FuzzParseHeader(f *testing.F) {
	h := header{format: headerFormat, storeID: [16]byte{9}, bootID: "boot", slabBytes: 2 << 20, metaBytes: 4 << 20, dataBytes: 64 << 20}
	f.Add(h.encode(), true)
	f.Add(rehash(h.encode(), 8, headerFormat+1), false)
	f.Add(rehash(h.encode(), 12, 65), false)
	f.Add(rehash(h.encode(), 100, 1), true)
	f.Add(rehash(h.encode(), 108, 1<<31), true)
	f.Add(rehash(h.encode(), 112, 0), true)
	f.Add(rehash(h.encode(), 200, 1), true)
	f.Add([]byte(headerMagic), false)
	f.Fuzz(func(t *testing.T, p []byte, fix bool) {
		if fix && len(p) == headerBytes { // get past the checksum
			binary.LittleEndian.PutUint64(p[headerBytes-8:], xxhash.Sum64(p[:headerBytes-8]))
		}
		h, err := parseHeader(p)
		if err != nil {
			return
		}
		require.Equal(t, p, h.encode())
		l := h.layout()
		require.LessOrEqual(t, l.used, l.region[MetaRegion].off)
		require.Equal(t, l.region[MetaRegion].off+h.metaBytes, l.region[DataRegion].off)
		require.Equal(t, l.region[DataRegion].off+h.dataBytes, l.total)
		require.Positive(t, l.total)
	})
}
