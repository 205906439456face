package main

// #include "guard.h"
import "C"

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"unsafe"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

var (
	errNotSetUp = errors.WithMessage(store.ErrInvalidParams, "the client is not set up")
	errHandle   = errors.WithMessage(store.ErrInvalidParams, "no such handle, or it was closed")
)

// fail notes err as the calling thread's last error and returns its code.
func fail(e *C.mc_error, err error) C.int {
	code := weight.Code(err)
	if err == store.ErrNotFound { // a miss is cheap: the code's own text will do
		e.code, e.text[0] = C.int(code), 0
		return C.int(code)
	}
	note(e, code, err.Error())
	return C.int(code)
}

func note(e *C.mc_error, code int, text string) {
	e.code = C.int(code)
	room := unsafe.Slice((*byte)(unsafe.Pointer(&e.text)), len(e.text)) // C's memory, as long as the call
	n := copy(room[:len(room)-1], text)
	room[n] = 0
}

// barrier ends a panic of an exported function: its result is then MOONCAKE_EINTERNAL. To be deferred as the first.
func barrier(e *C.mc_error, result *C.int) {
	if p := recover(); p != nil {
		note(e, -1, recovered(p))
		*result = -1
	}
}

// barrier64 is barrier for functions with a wider result.
func barrier64(e *C.mc_error, result *C.int64_t) {
	if p := recover(); p != nil {
		note(e, -1, recovered(p))
		*result = -1
	}
}

// recovered is the text of a panic: what it was and where it came from. One that came out of the store may have left locks
// and half of a change behind: then nobody can rely on an open store any more, and all of them fail.
func recovered(p any) string {
	stack := string(debug.Stack())
	if _, after, ok := strings.Cut(stack, "panic("); ok { // the frames of this function and of the barrier
		stack = after
	}
	if strings.Contains(stack, "mooncake-go/store") || strings.Contains(stack, "mooncake-go/weight") {
		failPools(store.Recovered(p))
	}
	return fmt.Sprintf("panic: %v\n%s", p, stack)
}

// results writes the code of each item of a batch, and notes the first error that is more than a miss.
type results struct {
	e     *C.mc_error
	noted bool
}

func (r *results) code(err error) C.int {
	if err == nil {
		return 0
	}
	if err == store.ErrNotFound {
		return C.int(store.Code(err))
	}
	if r.noted {
		return C.int(weight.Code(err))
	}
	r.noted = true
	return fail(r.e, err)
}

// always is the context of calls that can't be cancelled.
var always = context.Background()
