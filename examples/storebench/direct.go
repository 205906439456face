package main

import (
	"os"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// direct does what fio does, for machines without it: it writes or reads a file once in blocks of 4 MiB past the page
// cache, and returns GB/s.
func direct(file string, bytes, syncEvery int, write bool) (float64, error) {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return 0, errors.WithMessage(err, file)
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	buf, err := unix.Mmap(-1, 0, diskBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Munmap(buf) }()
	fillRandom(buf)
	start := time.Now()
	for i := range bytes / diskBytes {
		off := int64(i) * diskBytes
		if !write {
			_, err = f.ReadAt(buf, off)
		} else if _, err = f.WriteAt(buf, off); err == nil && (i+1)%syncEvery == 0 {
			err = unix.Fdatasync(fd)
		}
		if err != nil {
			return 0, err
		}
	}
	return float64(bytes) / 1e9 / time.Since(start).Seconds(), nil
}
