//go:build unix

package sumbench

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// Memory is a source and a target of equal size, mapped and touched, in huge pages where the kernel gives them.
type Memory struct {
	dst, src []byte
	next     int // blocks handed out, so that no block comes twice before all others have
}

// Contender is one way to move or to read a block.
type Contender struct {
	Name string
	Run  func(dst, src []byte)
}

// NewMemory maps twice bytes, a power of two. To measure what caches cannot hold, take more than the largest of them.
func NewMemory(bytes int) (*Memory, error) {
	src, err := mapTouched(bytes)
	if err != nil {
		return nil, err
	}
	dst, err := mapTouched(bytes)
	if err != nil {
		_ = unix.Munmap(src)
		return nil, err
	}
	return &Memory{dst: dst, src: src}, nil
}

// Close unmaps it.
func (m *Memory) Close() error {
	if err := unix.Munmap(m.src); err != nil {
		return errors.Wrap(err, "unmap the source")
	}
	return errors.Wrap(unix.Munmap(m.dst), "unmap the target")
}

func mapTouched(bytes int) ([]byte, error) {
	p, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, errors.Wrapf(err, "map %d bytes", bytes)
	}
	adviseHuge(p)
	for i := 0; i < len(p); i += 64 {
		p[i] = byte(i >> 6)
	}
	return p, nil
}

// Round lets each contender in turn move about turn bytes in blocks with each of threads, and appends its speed in GB/s
// to speeds[i]. Contenders meet the same conditions because they alternate; take the median of many rounds.
func (m *Memory) Round(contenders []Contender, block, threads, turn int, speeds [][]float64) {
	blocks := max(1, turn/block)
	for i, c := range contenders {
		start := time.Now()
		var wg sync.WaitGroup
		for t := range threads {
			wg.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				for k := range blocks {
					at := m.place(m.next+t*blocks+k, block)
					c.Run(m.dst[at:at+block], m.src[at:at+block])
				}
			})
		}
		wg.Wait()
		m.next += threads * blocks
		speeds[i] = append(speeds[i], float64(threads*blocks*block)/1e9/time.Since(start).Seconds())
	}
}

// place returns where the nth block lies: blocks follow each other in no order that hardware would guess.
func (m *Memory) place(n, block int) int {
	count := uint64(len(m.src) / block)
	return int(uint64(n)*2654435761%count) * block
}

// Median sorts p and returns its median, 0 of none.
func Median(p []float64) float64 {
	if len(p) == 0 {
		return 0
	}
	slices.Sort(p)
	return p[len(p)/2]
}
