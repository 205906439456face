// Package sum copies and hashes object bytes in one pass.
//
// The checksum of an object is a table: the XXH64 (seed 0) of every 64 KiB chunk of its bytes in order, the last one as
// short as it comes. The digest of the object is the only hash of a table of one, and else the XXH64 of the table written as
// little-endian words.
//
// Whatever copies and hashes reads each byte of the source once and both hashes and stores what it read. So the hash is that
// of the bytes written, even if someone else writes the source meanwhile or has the target mapped.
//
// On amd64 large copies bypass the caches: neither the source nor the target of a block of many megabytes is of use there,
// and a store that does not first read its cache line saves a third of the memory traffic. The kernels end with a store fence,
// so a caller publishes the bytes as after any other write. An XXH64 of one stream needs eight 64-bit multiplications for 32
// bytes, which hide under such a copy's memory stalls, and not under reading alone; where AVX-512 is there, reading takes four
// chunks side by side in vector lanes. Other CPUs run Go code.
package sum
