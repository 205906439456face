// Command other is a Go library of somebody else's, for a process that has two.
package main

import "C"

import "runtime"

//export other_add
func other_add(a, b C.int) C.int { return a + b }

// other_work allocates, starts goroutines and collects garbage.
//
//export other_work
func other_work(n C.int) C.int {
	sums := make(chan int)
	for i := range int(n) {
		go func() {
			s := 0
			for _, v := range make([]int, 10000) {
				s += v + i
			}
			sums <- s
		}()
	}
	total := 0
	for range int(n) {
		total += <-sums
	}
	runtime.GC()
	return C.int(total / 10000)
}

// other_fault follows a nil pointer and recovers: the signal must come to this runtime.
//
//export other_fault
func other_fault() (r C.int) {
	defer func() {
		if recover() != nil {
			r = 1
		}
	}()
	var p *int
	*p = 1
	return 0
}

// other_empty costs what a call from C into Go costs.
//
//export other_empty
func other_empty() {}

func main() {}
