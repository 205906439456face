//go:build cgo && !failpoints

package main

// failpoint is where a test build panics in every exported function.
func failpoint() {}
