package store

import (
	"context"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// lateEnd is a context that ends when it has been looked at n times.
type lateEnd struct {
	context.Context
	looks, n int
}

func (c *lateEnd) Err() error {
	if c.looks++; c.looks > c.n {
		return context.Canceled
	}
	return nil
}

// A pattern whose program is out of proportion is refused by its limit, and no work is done for it.
func TestPatternLimits(t *testing.T) {
	s := openTest(t, Options{})
	for pattern, limit := range map[string]string{
		"(((xyz|(ab)?){10}){10}){10}":            "10000 instructions",
		"(((x{30}){30}){1,})":                    "",
		strings.Repeat("(a{1000}|b)", 20):        "10000 instructions",
		strings.Repeat("a", MaxPatternBytes+1):   "limit 4096",
		strings.Repeat("a|", MaxPatternBytes/2):  "",
		"(" + strings.Repeat("(a*)*", 800) + ")": "",
		"a(":                                     "missing closing )",
	} {
		_, err := s.RemoveRegex(t.Context(), pattern, false)
		if limit == "" {
			require.NoError(t, err, "%.40s", pattern)
			continue
		}
		require.ErrorIs(t, err, ErrInvalidParams, "%.40s", pattern)
		require.ErrorContains(t, err, limit)
	}
}

// The estimate is never below the program that Go compiles.
func TestPatternProgramIsEstimatedHighEnough(t *testing.T) {
	for pattern, insts := range map[string]int{"(a|b){3}c*": 14, "a{2,5}": 9, "[a-z]+x?": 4, "(?:ab){4}": 8, "^$": 2} {
		ctx := context.Background()
		_, err := compilePattern(ctx, pattern)
		require.NoError(t, err)
		require.GreaterOrEqual(t, programSize(parse(t, pattern)), insts, pattern)
	}
}

// A match that takes long ends soon after its context: the work between two looks is bounded.
func TestMatchEndsWithItsContext(t *testing.T) {
	pattern := "((((a|b)*c?){10}){10}){6}x$"
	key := strings.Repeat("ab", MaxKeyBytes/2)
	ctx := &lateEnd{Context: context.Background(), n: 1 << 30}
	match, err := compilePattern(ctx, pattern)
	require.NoError(t, err)
	require.False(t, match(key))
	looks := ctx.looks
	require.Greater(t, looks, 100, "it is looked at often")
	ctx.looks, ctx.n = 0, 5
	match(key)
	require.Less(t, ctx.looks, 8, "and then it ends")
}

// Both ways to match agree.
func TestSlowMatchesAgree(t *testing.T) {
	long := strings.Repeat("k-", 1500)
	for _, pattern := range []string{"^k-", "-$", "(k|-)*9", "k{2}", "^.*$", "\\xff", "é"} {
		for _, key := range []string{long, long + "9", long + "kk", long + "\xff", long + "é"} {
			padded := pattern + "|" + strings.Repeat("(zz)", 40)
			match, err := compilePattern(context.Background(), padded)
			require.NoError(t, err)
			require.Greater(t, programSize(parse(t, padded))*len(key), quickMatch)
			require.Equal(t, regexp.MustCompile(padded).MatchString(key), match(key), fmt.Sprintf("%s in ...%q", pattern, key[2990:]))
		}
	}
}

// Removal by pattern ends with its context before the next key, and a Close in between ends it.
func TestRemoveRegexStops(t *testing.T) {
	s := openTest(t, Options{})
	for i := range 50 {
		require.NoError(t, s.Put(t.Context(), fmt.Sprint("k", i), []byte("v"), nil))
	}
	ctx := &lateEnd{Context: context.Background(), n: 10}
	n, err := s.RemoveRegex(ctx, "k", false)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, n, 11)

	calls := 0
	_, err = s.removeIf(t.Context(), false, func(string) bool {
		if calls++; calls == 1 {
			require.NoError(t, s.Close(), "it does not wait for the match that it is called from")
		}
		return true
	})
	require.ErrorIs(t, err, ErrClosed)
}

func parse(t *testing.T, pattern string) *syntax.Regexp {
	t.Helper()
	re, err := syntax.Parse(pattern, syntax.Perl)
	require.NoError(t, err)
	return re
}
