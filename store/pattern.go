package store

import (
	"context"
	"io"
	"regexp"
	"regexp/syntax"
	"unicode/utf8"

	"github.com/pkg/errors"
)

// Limits of a pattern. A match takes time in proportion to the program and the key: without a limit a short pattern with
// nested repetitions has a program of millions of instructions.
const (
	MaxPatternBytes   = 4096
	MaxPatternProgram = 10000 // instructions, repetitions written out
)

// compilePattern makes the function that tells whether a key has a match of pattern. Once ctx has ended it returns
// within a few thousand instructions, and what it returns means nothing.
func compilePattern(ctx context.Context, pattern string) (match func(key string) bool, err error) {
	if len(pattern) > MaxPatternBytes {
		return nil, errors.WithMessagef(ErrInvalidParams, "pattern %.64q... is %d bytes, limit %d", pattern, len(pattern), MaxPatternBytes)
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, errors.WithMessagef(ErrInvalidParams, "pattern %.64q: %v", pattern, err)
	}
	program := programSize(parsed)
	if program > MaxPatternProgram {
		return nil, errors.WithMessagef(ErrInvalidParams, "pattern %.64q makes a program of more than %d instructions", pattern, MaxPatternProgram)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, errors.WithMessagef(ErrInvalidParams, "pattern %.64q: %v", pattern, err)
	}
	return func(key string) bool {
		if program*len(key) <= quickMatch {
			return re.MatchString(key)
		}
		return re.MatchReader(&stoppableKey{ctx: ctx, rest: key, every: max(1, quickMatch/16/program)})
	}, nil
}

// quickMatch is the number of instructions that a match may take without a look at the context: some milliseconds.
const quickMatch = 1 << 17

// programSize estimates the instructions of a pattern without writing its repetitions out. It stops soon after
// MaxPatternProgram.
func programSize(re *syntax.Regexp) (n int) {
	for _, sub := range re.Sub {
		if n += programSize(sub); n > MaxPatternProgram {
			return n
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpRepeat:
		times := re.Max // at most 1000
		if times < 0 {
			times = re.Min + 1
		}
		return (n + 1) * max(times, 1)
	case syntax.OpAlternate:
		return n + len(re.Sub)
	case syntax.OpConcat:
		return n
	}
	return n + 2 // of a capture; fewer of the others
}

// stoppableKey reads a key for a match, and ends early when ctx does.
type stoppableKey struct {
	ctx   context.Context
	rest  string
	every int // runes between two looks at ctx
	n     int
}

func (k *stoppableKey) ReadRune() (r rune, size int, err error) {
	if k.n++; len(k.rest) == 0 || k.n%k.every == 0 && k.ctx.Err() != nil {
		return 0, 0, io.EOF
	}
	r, size = utf8.DecodeRuneInString(k.rest)
	k.rest = k.rest[size:]
	return r, size, nil
}
