package ssd

import (
	"context"
	"reflect"
	"sync"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// buffers is a bounded set of equal, block-aligned staging buffers outside the Go heap. Memory is taken at first use,
// and the buffer given back last is taken next, so that as many are ever touched as were in use at a time.
type buffers struct {
	region []byte
	tokens chan struct{} // one for each buffer of free
	mu     struct {
		sync.Mutex
		free [][]byte
	}
}

func newBuffers(count int, size int64) (*buffers, error) {
	region, err := unix.Mmap(-1, 0, count*int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.Wrapf(err, "map %d staging buffers of %d bytes", count, size)
	}
	b := &buffers{region: region, tokens: make(chan struct{}, count)}
	for i := int64(count) - 1; i >= 0; i-- {
		b.put(region[i*size : (i+1)*size : (i+1)*size])
	}
	return b, nil
}

// get waits for a buffer; put must follow.
func (b *buffers) get(ctx context.Context) ([]byte, error) {
	if buf := b.tryGet(); buf != nil {
		return buf, nil
	}
	select {
	case <-b.tokens:
		return b.pop(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// take is get for those who have no context.
func (b *buffers) take() []byte {
	<-b.tokens
	return b.pop()
}

// tryGet is nil when every buffer is in use.
func (b *buffers) tryGet() []byte {
	select {
	case <-b.tokens:
		return b.pop()
	default:
		return nil
	}
}

// pop takes the buffer that a token stands for.
func (b *buffers) pop() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.mu.free) - 1
	buf := b.mu.free[last]
	b.mu.free = b.mu.free[:last]
	return buf
}

func (b *buffers) put(buf []byte) {
	b.mu.Lock()
	b.mu.free = append(b.mu.free, buf)
	b.mu.Unlock()
	b.tokens <- struct{}{} // never waits: it has room for one of each buffer
}

// close unmaps the buffers, all of which must have been put back.
func (b *buffers) close() error {
	if b == nil {
		return nil
	}
	if len(b.tokens) != cap(b.tokens) {
		panic("ssd: BUG: staging buffer in use at close")
	}
	return unix.Munmap(b.region)
}

// aligned says whether p begins at a block's boundary. Go does not move heap objects, so the answer stays true.
func aligned(p []byte) bool {
	return len(p) == 0 || reflect.ValueOf(&p[0]).Pointer()%BlockBytes == 0
}
