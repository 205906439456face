package ssd

import (
	"errors"
	"reflect"
	"testing"

	"github.com/cespare/xxhash/v2"
)

func testHead(key string, size int64) *Head {
	h := &Head{Key: []byte(key), Size: size, Gen: 7, Type: 3, Table: make([]uint64, chunks(size))}
	var enc []byte
	for i := range h.Table {
		h.Table[i] = uint64(i)*0x9e3779b97f4a7c15 + 1
		enc = le.AppendUint64(enc, h.Table[i])
	}
	h.Digest = tableDigest(enc)
	return h
}

func TestHeadRoundTrip(t *testing.T) {
	for _, size := range []int64{0, 1, chunkBytes, chunkBytes + 1, 1 << 30} {
		for _, loc := range []Loc{{File: 1, Off: 64}, {File: 9, Off: 1<<32 - 1, Own: 8}} {
			h := testHead("some key", size)
			b := encodeHead([]byte("before"), h, loc)[6:]
			if int64(len(b)) != headLen(len(h.Key), size) {
				t.Fatalf("encodeHead of %d bytes is %d long, headLen says %d", size, len(b), headLen(len(h.Key), size))
			}
			got, err := parseHead(append(b, "behind"...), loc)
			if err != nil || !reflect.DeepEqual(got, *h) {
				t.Fatalf("parseHead = %v, %v, want %v", got, err, *h)
			}
			if _, err := parseHead(b, Loc{File: loc.File, Off: loc.Off - 1, Own: loc.Own}); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("parseHead at another place: %v, want ErrCorrupt", err)
			}
		}
	}
}

func TestHeadOfNewerFormat(t *testing.T) {
	b := encodeHead(nil, testHead("k", 10), Loc{File: 1, Off: 64})
	le.PutUint16(b[4:], formatVersion+1)
	le.PutUint64(b[56:], headHash(b))
	if _, err := parseHead(b, Loc{File: 1, Off: 64}); !errors.Is(err, ErrNewerFormat) {
		t.Fatalf("parseHead = %v, want ErrNewerFormat", err)
	}
}

func TestTableDigest(t *testing.T) {
	var enc []byte
	if tableDigest(enc) != xxhash.Sum64(nil) {
		t.Fatal("digest of an empty table")
	}
	if enc = le.AppendUint64(enc, 5); tableDigest(enc) != 5 {
		t.Fatal("digest of one chunk is its hash")
	}
	if enc = le.AppendUint64(enc, 6); tableDigest(enc) != xxhash.Sum64(enc) {
		t.Fatal("digest of two chunks")
	}
}

func TestParseName(t *testing.T) {
	for name, want := range map[string]struct {
		id      uint32
		own, ok bool
	}{
		"0000000a.log": {10, false, true}, "ffffffff.obj": {1<<32 - 1, true, true},
		"0000000A.log": {}, "a.log": {}, "00000000.log": {}, "TIER": {}, ".obj": {}, "0000000a.obj.log": {}, "100000000.log": {},
		"+000000a.log": {},
	} {
		if id, own, ok := parseName(name); id != want.id || ok != want.ok || ok && own != want.own {
			t.Errorf("parseName(%q) = %d, %v, %v, want %v", name, id, own, ok, want)
		}
	}
}

func TestPlaceAligns(t *testing.T) {
	for _, size := range []int64{0, 1, 4096, largeBytes - 1, largeBytes, 1 << 20} {
		for off := int64(BlockBytes); off < 3*BlockBytes; off += granule {
			s := place(off, 5, size, false)
			align := int64(granule)
			if size >= largeBytes {
				align = BlockBytes
			}
			if s.data%align != 0 || s.end%granule != 0 || s.end < s.data+size || s.data < off+headLen(5, size) {
				t.Fatalf("place(%d, 5, %d) = %+v", off, size, s)
			}
		}
	}
}

func FuzzParseHead(f *testing.F) {
	f.Add(encodeHead(nil, testHead("key", 100), Loc{File: 1, Off: 64}))
	f.Add(encodeHead(nil, testHead("", 1<<20), Loc{File: 1, Off: 64}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		loc := Loc{File: 1, Off: 64}
		// A fuzzer does not find hashes, so what is behind them is tried as well.
		for range 2 {
			h, err := parseHead(b, loc)
			if err == nil {
				again := encodeHead(nil, &h, loc)
				if got, err := parseHead(again, loc); err != nil || !reflect.DeepEqual(got, h) {
					t.Fatalf("%v comes back as %v, %v", h, got, err)
				}
			}
			keyLen, size, err := headSizes(b)
			if err != nil || int64(len(b)) < headLen(keyLen, size) {
				return
			}
			b = append([]byte(nil), b[:headLen(keyLen, size)]...)
			le.PutUint64(b[56:], headHash(b))
		}
	})
}

func FuzzParseBlock(f *testing.F) {
	b := make([]byte, BlockBytes)
	encodeBlock(b, block{magic: magicTier, id: 5})
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if x, err := parseBlock(b, magicTier); err == nil && x.magic != magicTier {
			t.Fatalf("parsed %+v", x)
		}
	})
}
