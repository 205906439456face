package weight

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// scanJSON gives text to a scanner in pieces of n bytes.
func scanJSON(text string, n int) error {
	s := new(jsonScanner)
	for len(text) > 0 {
		m := min(n, len(text))
		_, _ = s.Write([]byte(text[:m]))
		text = text[m:]
	}
	return s.Close()
}

// TestJSON checks what engines accept, and what they don't: the verdicts are those of Python's json.load, but for the byte
// order mark.
func TestJSON(t *testing.T) {
	for _, good := range []string{
		`{}`, `[]`, ` {"a" : [1, -0, 0.5, 1e9, 1E+9, -1.5e-3, true, false, null]} `, "\n\t\r 1 ", `"x"`, `0`, `-12`, `NaN`, `[NaN,Infinity,-Infinity]`,
		`{"a":1,"a":2}`, `"\ud800"`, `"\u00e9\"\\\/\b\f\n\r\t"`, `"é😀"`, `{"é":{"a":[{}]}}`, "\ufeff{}", strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
		`{"\u0061":1}`, `"` + "\x7f" + `"`, `[[],[[]],{"a":[]}]`,
	} {
		for _, n := range []int{1, 2, 3, 1000} {
			require.NoError(t, scanJSON(good, n), "%.40q", good)
		}
	}
	for _, bad := range []string{
		``, ` `, `{`, `[`, `"`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `[1,]`, `[,]`, `{,}`, `{1:2}`, `{"a" 1}`, `[1 2]`, `]`, `}`, `[}`, `{]`, `{} {}`, `{}x`,
		`nul`, `nulll`, `True`, `'a'`, `01`, `-`, `1.`, `1.e3`, `1e`, `1e+`, `.5`, `+1`, `-NaN`, `Infinit`, `-Inf`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"a\nb\"", "\"\x00\"", `// c
			{}`, `{"a":1} //`, "\"\xff\"", "\"\xc3\"", "\"\xc3", "\xff\xfe{\x00}\x00", "\u00a0{}", "{\ufeff}", "é", strings.Repeat("[", 1001) + strings.Repeat("]", 1001),
		"\x00", "{}\x00", "\ufeff",
	} {
		for _, n := range []int{1, 2, 3, 1000} {
			require.Error(t, scanJSON(bad, n), "%.40q", bad)
		}
	}
}

// TestLargeJSON checks a tokenizer of 24 MB without keeping it.
func TestLargeJSON(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"model":{"vocab":{`)
	for b.Len() < 24<<20 {
		b.WriteString(`"Ġtoken\u00e9 and a longer piece of text":123456,`)
	}
	b.WriteString(`"end":0}}}`)
	text := []byte(b.String())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := new(jsonScanner)
	_, _ = s.Write(text)
	require.NoError(t, s.Close())
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	s = new(jsonScanner)
	_, _ = s.Write(text[:len(text)-1])
	require.ErrorContains(t, s.Close(), "cut short")
}

// FuzzJSON compares with encoding/json, which is stricter only in the words for numbers, the byte order mark, and the depth,
// and looser only with bytes that are not UTF-8.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-2.5e3,true,null,"x\u00e9"]}`, `{"a":`, `[NaN]`, `"é"`, ``} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := scanJSON(text, 7)
		require.Equal(t, err == nil, scanJSON(text, 1) == nil)
		valid := json.Valid([]byte(text))
		odd := strings.Contains(text, "NaN") || strings.Contains(text, "Infinity") || strings.Contains(text, "\ufeff") ||
			strings.Count(text, "[")+strings.Count(text, "{") > maxJSONDepth
		if odd || !utf8.ValidString(text) {
			return
		}
		require.Equal(t, valid, err == nil, "%q: %v", text, err)
	})
}
