//go:build !amd64

package master

func prefetch(*uintptr, int) {}
