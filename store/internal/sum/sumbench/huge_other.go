//go:build unix && !linux

package sumbench

func adviseHuge([]byte) {}
