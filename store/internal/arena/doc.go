// Package arena owns memory outside the Go heap: shared-memory segments and files, the machine's limits on them, and
// the bookkeeping of which extent of a segment is free.
//
// Allocator is pure bookkeeping over an address range and never touches the memory behind it. Segment is one mapped
// shared-memory file whose space is taken from the kernel, and given back, in steps. FileSet holds objects that
// need a file of their own. MemLimits says what the machine still gives; Accounting counts what was taken.
//
// Slices of mapped memory are valid until the segment or file they came from is closed; using one later is a fault
// that kills the process. The package assumes 64-bit Linux.
package arena
