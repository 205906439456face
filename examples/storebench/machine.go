package main

import (
	"bufio"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

func gib(n int64) float64 { return float64(n) / (1 << 30) }

// memAvailable is what the kernel thinks can be taken without swapping.
func memAvailable() int64 {
	kib, _ := strconv.ParseInt(strings.TrimSuffix(procLine("/proc/meminfo", "MemAvailable:"), " kB"), 10, 64)
	return kib << 10
}

func cpuName() string { return strings.TrimLeft(procLine("/proc/cpuinfo", "model name"), "\t: ") }

func procLine(file, prefix string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func loadAverage() string {
	p, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(p), " ")
	return first
}

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

// fillRandom gives every page bytes of its own.
func fillRandom(p []byte) {
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(p[:min(len(p), 1<<20)])
	for n := 1 << 20; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
	for i := 0; i+8 <= len(p); i += 4096 {
		p[i], p[i+1], p[i+2], p[i+3] = byte(i>>12), byte(i>>20), byte(i>>28), byte(i>>36)
	}
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

// settle ends garbage collection that earlier work began.
func settle() {
	runtime.GC()
	runtime.GC()
}
