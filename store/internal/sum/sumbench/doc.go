// Package sumbench holds what the benchmarks of the copy and hash kernels are measured against: the C library's memcpy,
// and memory that is larger than the caches. Only tests import it.
package sumbench
