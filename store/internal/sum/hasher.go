package sum

// Hasher builds the table of a stream of bytes that comes in pieces of any size. The zero value is ready. It is not safe for
// concurrent use.
type Hasher struct {
	v       lanes
	size    int             // of the open chunk
	tail    [tailBytes]byte // its last size % tailBytes bytes, not in v yet
	started bool            // v is set
	table   []uint64        // the closed chunks
}

// Reset starts a new stream, whose table is built in the memory of buf, which may be nil.
func (h *Hasher) Reset(buf []uint64) {
	h.size, h.started, h.table = 0, false, buf[:0]
}

// Table returns the hashes of the chunks so far, the last one as short as it is now. It is the Hasher's until the last
// Write, CopyTo or Reset.
func (h *Hasher) Table() []uint64 {
	if h.size == 0 {
		return h.table
	}
	v := h.lanes()
	return append(h.table, finish(&v, uint64(h.size), h.tail[:h.size%tailBytes]))
}

// Write takes p as the next bytes of the stream. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	n := len(p)
	if h.size == 0 {
		whole := len(p) &^ (ChunkBytes - 1)
		h.table = HashChunks(p[:whole], h.table)
		p = p[whole:]
	}
	for len(p) > 0 {
		k := min(len(p), ChunkBytes-h.size)
		h.take(nil, p[:k], len(p))
		p = p[k:]
	}
	return n, nil
}

// CopyTo copies src to dst, which is as long and does not overlap it, and takes the bytes written as the next of the stream.
func (h *Hasher) CopyTo(dst, src []byte) {
	mustMatch(dst, src)
	for len(src) > 0 {
		k := min(len(src), ChunkBytes-h.size)
		h.take(dst[:k], src[:k], len(src))
		dst, src = dst[k:], src[k:]
	}
}

func (h *Hasher) lanes() lanes {
	if !h.started {
		return newLanes()
	}
	return h.v
}

// take adds p, which fits the open chunk, and copies it to dst if there is one. reach is as for hash.
func (h *Hasher) take(dst, p []byte, reach int) {
	noteRead(p)
	noteWrite(dst)
	v := h.lanes()
	if h.size%tailBytes != 0 {
		n := h.fill(dst, p)
		if h.size%tailBytes == 0 {
			stripesGo(&v, h.tail[:])
		}
		p, reach = p[n:], reach-n
		if dst != nil {
			dst = dst[n:]
		}
	}
	if n := len(p) &^ (tailBytes - 1); n > 0 {
		if dst == nil {
			hashBlocks(&v, p[:n], reach)
		} else {
			copyHashBlocks(&v, dst[:n], p[:n], reach)
			dst = dst[n:]
		}
		h.size += n
		p = p[n:]
	}
	h.v, h.started = v, true
	h.fill(dst, p)
	if h.size == ChunkBytes {
		h.table = append(h.table, finish(&v, ChunkBytes, nil))
		h.size, h.started = 0, false
	}
}

// fill moves bytes of p to the tail until that is full, and from there to dst if there is one.
func (h *Hasher) fill(dst, p []byte) int {
	at := h.size % tailBytes
	n := copy(h.tail[at:], p)
	if dst != nil {
		copy(dst, h.tail[at:at+n])
	}
	h.size += n
	return n
}
