package master

// prefetch asks for the cache lines of n addresses and waits for none of them. An address may be anything.
//
//go:noescape
func prefetch(at *uintptr, n int)
