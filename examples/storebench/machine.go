package main

import (
	"math/rand/v2"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// shared is memory of the kind that the store has: a file in memory, mapped shared.
type shared struct {
	fd  int
	mem []byte
}

const populateStep = 2 << 20

// newShared maps size bytes, filled with pages by the kernel.
func newShared(size int64) (*shared, error) {
	fd, err := unix.MemfdCreate("storebench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, errors.WithMessage(err, "memfd")
	}
	s := &shared{fd: fd}
	if err := unix.Ftruncate(fd, size); err != nil {
		s.close()
		return nil, err
	}
	if s.mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		s.close()
		return nil, errors.WithMessagef(err, "map %d bytes", size)
	}
	_ = unix.Madvise(s.mem, unix.MADV_HUGEPAGE) // a kernel that has none for shared memory refuses
	if err := s.populate(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// populate takes all pages: the cheapest way that the kernel offers, in steps that a signal does not undo.
func (s *shared) populate() error {
	for off := 0; off < len(s.mem); off += populateStep {
		step := s.mem[off:min(off+populateStep, len(s.mem))]
		if err := again(func() error { return unix.Fallocate(s.fd, 0, int64(off), int64(len(step))) }); err != nil {
			return errors.WithMessage(err, "fallocate")
		}
		if err := again(func() error { return unix.Madvise(step, unix.MADV_POPULATE_WRITE) }); err != nil {
			return errors.WithMessage(err, "populate")
		}
	}
	return nil
}

func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (s *shared) close() {
	if s.mem != nil {
		_ = unix.Munmap(s.mem)
	}
	_ = unix.Close(s.fd)
}

// order is a random order of n things, the same in every run.
func order(n int) []int {
	return rand.New(rand.NewPCG(1, 2)).Perm(n)
}

// keyBytes is the length of all keys here.
const keyBytes = 32

// appendKey makes key i.
func appendKey(p []byte, prefix byte, i int) []byte {
	start := len(p)
	p = append(p, prefix, '/')
	p = append(p, "00000000000000000000000000000000"[:keyBytes-2]...)
	for at := start + keyBytes - 1; i > 0; at-- {
		p[at] = '0' + byte(i%10)
		i /= 10
	}
	return p
}

// makeKeys makes the keys with the given numbers, one behind the other in memory, so that reading them in this order
// costs little: a caller has just made its key.
func makeKeys(prefix byte, numbers []int) []string {
	p := make([]byte, 0, keyBytes*len(numbers))
	for _, i := range numbers {
		p = appendKey(p, prefix, i)
	}
	all := string(p)
	keys := make([]string, len(numbers))
	for i := range keys {
		keys[i] = all[i*keyBytes : (i+1)*keyBytes]
	}
	return keys
}

func upTo(n int) []int { return span(0, n) }

func span(from, to int) []int {
	p := make([]int, to-from)
	for i := range p {
		p[i] = from + i
	}
	return p
}
