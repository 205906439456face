package store

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// copyStep is how much is copied between two looks at the context. A multiple of sum.ChunkBytes.
const copyStep = 4 << 20

// tables are the chunk tables of puts and verified reads in progress.
var tables = sync.Pool{New: func() any { return new([]uint64) }}

// pieces is the memory of an object's extents, in order. A memory file of its own must be pinned. The common object is one piece and allocates nothing.
func (c *core) pieces(o *master.Object, buf [][]byte) [][]byte {
	extents := o.Extents()
	buf = slices.Grow(buf, len(extents))
	for _, e := range extents {
		buf = append(buf, c.bytes(e))
	}
	return buf
}

// fill copies src into the pieces of a reservation, hashing in the same pass, and appends the chunk table to table.
func fill(ctx context.Context, pieces, src [][]byte, table []uint64) ([]uint64, error) {
	if len(pieces) == 1 && len(src) == 1 {
		return fillOne(ctx, pieces[0], src[0], table)
	}
	var h sum.Hasher
	h.Reset(table)
	for _, p := range src {
		for len(p) > 0 {
			if len(pieces[0]) == 0 {
				pieces = pieces[1:]
				continue
			}
			if err := ctx.Err(); err != nil {
				return table, err
			}
			n := min(len(p), len(pieces[0]), copyStep)
			h.CopyTo(pieces[0][:n], p[:n])
			pieces[0], p = pieces[0][n:], p[n:]
		}
	}
	return h.Table(), nil
}

func fillOne(ctx context.Context, dst, src []byte, table []uint64) ([]uint64, error) {
	for len(src) > 0 {
		if err := ctx.Err(); err != nil {
			return table, err
		}
		n := min(len(src), copyStep)
		table = sum.CopyHashChunks(dst[:n], src[:n], table)
		dst, src = dst[n:], src[n:]
	}
	return table, nil
}

// storeTable writes the chunk table of a memory replica to its extent, if it has one.
func (c *core) storeTable(o *master.Object, table []uint64) {
	e, ok := o.Table()
	if !ok {
		return
	}
	p := c.bytes(e)
	for i, h := range table {
		binary.LittleEndian.PutUint64(p[i*8:], h)
	}
}

// loadTable appends the chunk table of a memory replica to buf and checks it against the object's digest.
func (c *core) loadTable(o *master.Object, buf []uint64) ([]uint64, error) {
	e, ok := o.Table()
	if !ok {
		return append(buf, o.Digest), nil
	}
	p := c.bytes(e)
	for i := 0; i < len(p); i += 8 {
		buf = append(buf, binary.LittleEndian.Uint64(p[i:]))
	}
	if sum.TableDigest(buf) != o.Digest {
		return buf, errors.WithMessage(ErrChecksum, "chunk table in memory")
	}
	return buf, nil
}

// copyRange copies dst from offset off of the pieces, without verification.
func copyRange(ctx context.Context, dst []byte, pieces [][]byte, off int64) error {
	for _, p := range pieces {
		if off >= int64(len(p)) {
			off -= int64(len(p))
			continue
		}
		p, off = p[off:], 0
		for len(p) > 0 && len(dst) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(len(p), len(dst), copyStep)
			sum.Copy(dst[:n], p[:n])
			p, dst = p[n:], dst[n:]
		}
		if len(dst) == 0 {
			return nil
		}
	}
	return nil
}

// verifyRange copies dst from offset off of the pieces and compares every chunk that it touches with the table. dst
// may be nil with n bytes to verify only.
func verifyRange(ctx context.Context, dst []byte, pieces [][]byte, off, n, size int64, table []uint64) error {
	if len(pieces) == 1 && off == 0 && n == size && dst != nil {
		return verifyWhole(ctx, dst, pieces[0], table)
	}
	at := off / sum.ChunkBytes * sum.ChunkBytes
	pieces, skip := seek(pieces, at)
	var h sum.Hasher
	var buf [1]uint64
	for i := at / sum.ChunkBytes; at < off+n; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := min(at+sum.ChunkBytes, size)
		h.Reset(buf[:0])
		for at < end {
			if skip == int64(len(pieces[0])) {
				pieces, skip = pieces[1:], 0
				continue
			}
			p := pieces[0][skip:min(skip+end-at, int64(len(pieces[0])))]
			hashPart(&h, dst, p, at-off)
			at, skip = at+int64(len(p)), skip+int64(len(p))
		}
		if got := h.Table(); got[0] != table[i] {
			return badChunk(i)
		}
	}
	return nil
}

// hashPart hashes p, whose first byte belongs at dst[at], and copies the part of it that lies inside dst.
func hashPart(h *sum.Hasher, dst, p []byte, at int64) {
	if dst == nil {
		_, _ = h.Write(p)
		return
	}
	if at >= 0 && at+int64(len(p)) <= int64(len(dst)) {
		h.CopyTo(dst[at:at+int64(len(p))], p)
		return
	}
	_, _ = h.Write(p)
	if at < 0 {
		p, at = p[min(-at, int64(len(p))):], 0
	}
	if at < int64(len(dst)) {
		copy(dst[at:], p)
	}
}

func verifyWhole(ctx context.Context, dst, src []byte, table []uint64) error {
	for at := 0; at < len(src); at += copyStep {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := min(at+copyStep, len(src))
		first := at / sum.ChunkBytes
		if bad := sum.CopyVerify(dst[at:end], src[at:end], table[first:first+sum.Chunks(int64(end-at))]); bad >= 0 {
			return badChunk(int64(first + bad))
		}
	}
	return nil
}

func badChunk(i int64) error {
	return errors.WithMessagef(ErrChecksum, "chunk %d, from byte %d", i, i*sum.ChunkBytes)
}

// seek finds the piece that holds byte at, and where in it.
func seek(pieces [][]byte, at int64) ([][]byte, int64) {
	for len(pieces) > 0 && at >= int64(len(pieces[0])) {
		at -= int64(len(pieces[0]))
		pieces = pieces[1:]
	}
	return pieces, at
}
