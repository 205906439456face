package ssd

import (
	"bytes"
	"encoding/binary"

	"github.com/pkg/errors"
)

var le = binary.LittleEndian

const (
	formatVersion = 1

	headFixed  = 64
	granule    = 64 // records start at multiples of this
	largeBytes = 64 << 10

	magicHead      = 0x43524b4d // "MKRC"
	magicContainer = 0x4c434b4d // "MKCL"
	magicTier      = 0x52544b4d // "MKTR"
)

const (
	// MaxKeyBytes bounds Head.Key.
	MaxKeyBytes = 16 << 10
	// MaxObjectBytes bounds Head.Size; a head is then at most 128 MiB.
	MaxObjectBytes = 1 << 40
)

// Loc is where an object is: a record in a container, and its data behind the head or in a file of its own. The zero
// Loc is none.
type Loc struct {
	File uint32 // id of the container
	Off  uint32 // of the record in the container, in units of 64 bytes
	Own  uint32 // id of the own data file; 0: the data follows the head
}

func (l Loc) offset() int64 { return int64(l.Off) * granule }

// RecordSize is what, beside the Loc, gives the bytes that a record takes.
type RecordSize struct {
	KeyLen int
	Size   int64
}

// Head describes an object. Digest and Table follow the rule of the package comment: Table has the XXH64 of each
// 64 KiB chunk, Digest is the only entry of a Table of one, else the XXH64 of the Table's little-endian encoding.
type Head struct {
	Key    []byte // opaque
	Size   int64
	Gen    uint64
	Type   uint8
	Digest uint64
	Table  []uint64
}

// Item is one object to append: Data are its bytes in order, Head.Size in total. They are borrowed during the call.
type Item struct {
	Head Head
	Data [][]byte
}

func alignUp(n, to int64) int64 { return (n + to - 1) &^ (to - 1) }

func headLen(keyLen int, size int64) int64 { return headFixed + int64(keyLen) + 8*int64(chunks(size)) }

// span is where a record's parts lie in its container.
type span struct{ off, data, end int64 }

func (s span) len() int64 { return s.end - s.off }

// place lays a record out at off.
func place(off int64, keyLen int, size int64, own bool) span {
	end := off + headLen(keyLen, size)
	if own {
		end = alignUp(end, granule)
		return span{off, end, end}
	}
	align := int64(granule)
	if size >= largeBytes {
		align = BlockBytes
	}
	data := alignUp(end, align)
	return span{off, data, alignUp(data+size, granule)}
}

func (l Loc) place(keyLen int, size int64) span { return place(l.offset(), keyLen, size, l.Own != 0) }

func checkSizes(keyLen int, size int64) error {
	if keyLen < 0 || keyLen > MaxKeyBytes {
		return errors.Wrapf(ErrInvalid, "key has %d bytes, at most %d", keyLen, MaxKeyBytes)
	}
	if size < 0 || size > MaxObjectBytes {
		return errors.Wrapf(ErrInvalid, "object has %d bytes, at most %d", size, int64(MaxObjectBytes))
	}
	return nil
}

// encodeHead appends the record head of h at loc to b.
func encodeHead(b []byte, h *Head, loc Loc) []byte {
	start := len(b)
	b = le.AppendUint32(b, magicHead)
	b = le.AppendUint16(b, formatVersion)
	b = append(b, h.Type, 0)
	b = le.AppendUint32(b, uint32(len(h.Key)))
	b = le.AppendUint32(b, loc.Own)
	b = le.AppendUint64(b, uint64(h.Size))
	b = le.AppendUint64(b, h.Gen)
	b = le.AppendUint64(b, h.Digest)
	b = le.AppendUint32(b, uint32(len(h.Table)))
	b = le.AppendUint32(b, loc.File)
	b = le.AppendUint32(b, loc.Off)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, 0) // the hash, below
	b = append(b, h.Key...)
	for _, x := range h.Table {
		b = le.AppendUint64(b, x)
	}
	le.PutUint64(b[start+56:], headHash(b[start:]))
	return b
}

// headHash hashes a whole encoded head but for the hash itself.
func headHash(b []byte) uint64 {
	d := newDigest()
	_, _ = d.Write(b[:56])
	_, _ = d.Write(b[headFixed:])
	return d.Sum64()
}

// headSizes reads the sizes in the first 64 bytes of a head, bounded but not verified.
func headSizes(b []byte) (keyLen int, size int64, err error) {
	if len(b) < headFixed {
		return 0, 0, errors.Wrapf(ErrCorrupt, "head of %d bytes", len(b))
	}
	if le.Uint32(b) != magicHead {
		return 0, 0, errors.Wrapf(ErrCorrupt, "no record: magic %#x", le.Uint32(b))
	}
	if v := le.Uint16(b[4:]); v > formatVersion {
		return 0, 0, errors.Wrapf(ErrNewerFormat, "record of version %d", v)
	}
	keyLen, size = int(le.Uint32(b[8:])), int64(le.Uint64(b[16:]))
	if keyLen > MaxKeyBytes || size < 0 || size > MaxObjectBytes || int64(le.Uint32(b[40:])) != int64(chunks(size)) {
		return 0, 0, errors.Wrapf(ErrCorrupt, "head with key of %d, object of %d bytes", keyLen, size)
	}
	return keyLen, size, nil
}

// parseHead verifies the encoded head b, which must be that of loc. The result shares nothing with b.
func parseHead(b []byte, loc Loc) (Head, error) {
	keyLen, size, err := headSizes(b)
	if err != nil {
		return Head{}, err
	}
	n := headLen(keyLen, size)
	if int64(len(b)) < n {
		return Head{}, errors.Wrapf(ErrCorrupt, "head of %d bytes, %d here", n, len(b))
	}
	b = b[:n]
	if le.Uint64(b[56:]) != headHash(b) {
		return Head{}, errors.Wrap(ErrCorrupt, "head")
	}
	at := Loc{File: le.Uint32(b[44:]), Off: le.Uint32(b[48:]), Own: le.Uint32(b[12:])}
	if at != loc {
		return Head{}, errors.Wrapf(ErrCorrupt, "head says it is at %v", at)
	}
	table := b[headFixed+keyLen:]
	h := Head{
		Key: bytes.Clone(b[headFixed : headFixed+keyLen]), Size: size, Gen: le.Uint64(b[24:]), Type: b[6],
		Digest: le.Uint64(b[32:]), Table: make([]uint64, chunks(size)),
	}
	if h.Digest != tableDigest(table) || le.Uint16(b[4:]) != formatVersion {
		return Head{}, errors.Wrap(ErrCorrupt, "digest of the table")
	}
	for i := range h.Table {
		h.Table[i] = le.Uint64(table[8*i:])
	}
	return h, nil
}

// block is the one block that TIER files and container headers are.
type block struct {
	magic   uint32
	storeID [16]byte
	id      uint32 // container: its file id; TIER: the lowest id never given out
}

// encodeBlock fills b, of BlockBytes.
func encodeBlock(b []byte, x block) {
	clear(b)
	le.PutUint32(b, x.magic)
	le.PutUint16(b[4:], formatVersion)
	copy(b[8:], x.storeID[:])
	le.PutUint32(b[24:], x.id)
	le.PutUint64(b[BlockBytes-8:], hash(b[:BlockBytes-8]))
}

// parseBlock verifies b, which should have the magic.
func parseBlock(b []byte, magic uint32) (block, error) {
	if len(b) != BlockBytes || le.Uint64(b[BlockBytes-8:]) != hash(b[:BlockBytes-8]) || le.Uint32(b) != magic {
		return block{}, errors.Wrap(ErrCorrupt, "header block")
	}
	if v := le.Uint16(b[4:]); v > formatVersion {
		return block{}, errors.Wrapf(ErrNewerFormat, "version %d", v)
	}
	return block{magic: magic, storeID: [16]byte(b[8:24]), id: le.Uint32(b[24:])}, nil
}
