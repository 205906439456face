package status

import (
	"fmt"
	"runtime/debug"
)

// Recovered makes an error of what recover returned: Internal, with the text of the panic and the stack that it came
// from. To be called by the deferred function, where that stack is still there.
func Recovered(p any) error {
	return &panicError{fmt.Sprintf("%s: panic: %v\n\n%s", Internal.Text, p, debug.Stack())}
}

// Recover, deferred, makes a panic the error that the function returns.
func Recover(err *error) {
	if p := recover(); p != nil {
		*err = Recovered(p)
	}
}

// panicError is not the panic's own value: that may be an error which means something else in this place.
type panicError struct{ text string }

func (e *panicError) Error() string { return e.text }
func (e *panicError) Unwrap() error { return Internal }
