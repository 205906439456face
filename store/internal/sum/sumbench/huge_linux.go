package sumbench

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages; without them the figures are those of small ones.
func adviseHuge(p []byte) { _ = unix.Madvise(p, unix.MADV_HUGEPAGE) }
