package ssd

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestFreeBytes takes a statfs that is all zero for one that says nothing.
func TestFreeBytes(t *testing.T) {
	for _, c := range []struct {
		st   unix.Statfs_t
		want int64
	}{{unix.Statfs_t{}, -1}, {unix.Statfs_t{Bsize: 4096}, -1}, {unix.Statfs_t{Bsize: 4096, Blocks: 10}, 0}, {unix.Statfs_t{Bsize: 4096, Blocks: 10, Bavail: 2}, 8192}} {
		if got := freeBytes(&c.st); got != c.want {
			t.Errorf("freeBytes(%+v) = %d, want %d", c.st, got, c.want)
		}
	}
}
