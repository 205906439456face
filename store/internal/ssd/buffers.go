package ssd

import (
	"context"
	"reflect"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// buffers is a bounded set of equal, block-aligned staging buffers outside the Go heap. Memory is taken at first use.
type buffers struct {
	region []byte
	free   chan []byte
}

func newBuffers(count int, size int64) (*buffers, error) {
	region, err := unix.Mmap(-1, 0, count*int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.Wrapf(err, "map %d staging buffers of %d bytes", count, size)
	}
	b := &buffers{region: region, free: make(chan []byte, count)}
	for i := range int64(count) {
		b.free <- region[i*size : (i+1)*size : (i+1)*size]
	}
	return b, nil
}

// get waits for a buffer; put must follow.
func (b *buffers) get(ctx context.Context) ([]byte, error) {
	select {
	case buf := <-b.free:
		return buf, nil
	default:
	}
	select {
	case buf := <-b.free:
		return buf, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *buffers) put(buf []byte) { b.free <- buf }

// close unmaps the buffers, all of which must have been put back.
func (b *buffers) close() error {
	if b == nil {
		return nil
	}
	if len(b.free) != cap(b.free) {
		panic("ssd: BUG: staging buffer in use at close")
	}
	return unix.Munmap(b.region)
}

// aligned says whether p begins at a block's boundary. Go does not move heap objects, so the answer stays true.
func aligned(p []byte) bool {
	return len(p) == 0 || reflect.ValueOf(&p[0]).Pointer()%BlockBytes == 0
}
