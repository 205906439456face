package weight

import (
	"unicode/utf8"

	"github.com/pkg/errors"
)

// maxJSONDepth bounds nested values, as the recursion limit of Python's json does.
const maxJSONDepth = 1000

// jsonScanner checks that what is written to it is one JSON value, as engines read it: what Python's json accepts is
// accepted (NaN, Infinity, equal keys, halves of surrogate pairs), and a byte order mark, which some readers skip. It keeps
// no part of the value, so that its memory does not grow with the file.
type jsonScanner struct {
	n       int64 // bytes seen
	stack   []byte
	state   jsonState
	word    string // what remains of true, null, ...
	hex     int    // digits that remain of \uXXXX
	partial []byte // an incomplete UTF-8 sequence
	err     error
}

type jsonState uint8

const (
	wantValue  jsonState = iota
	firstValue           // or ]
	firstKey             // or }
	wantKey
	wantColon
	afterValue
	inString
	inKey
	inEscape // of a string
	inKeyEscape
	inWord
	afterMinus
	zeroDigit
	intDigits
	afterPoint
	fracDigits
	afterE
	afterESign
	expDigits
)

// Write never fails; Close tells.
func (s *jsonScanner) Write(p []byte) (int, error) {
	for _, c := range p {
		if s.err != nil {
			break
		}
		s.step(c)
		s.n++
	}
	return len(p), nil
}

// Close reports whether everything written was one value.
func (s *jsonScanner) Close() error {
	switch {
	case s.err != nil:
		return s.err
	case s.n == 0:
		return errors.New("not JSON: it is empty")
	case len(s.partial) > 0 || len(s.stack) > 0 || !s.complete():
		return errors.Errorf("not JSON: it is cut short after %d bytes", s.n)
	}
	return nil
}

// complete is for the top level: a number there ends with the file.
func (s *jsonScanner) complete() bool {
	switch s.state {
	case afterValue, zeroDigit, intDigits, fracDigits, expDigits:
		return true
	}
	return false
}

func (s *jsonScanner) fail(what string) {
	s.err = errors.Errorf("not JSON: byte %d: %s", s.n, what)
}

func (s *jsonScanner) step(c byte) {
	if len(s.partial) > 0 || c >= utf8.RuneSelf {
		s.wide(c)
		return
	}
	switch s.state {
	case inString, inKey:
		s.inText(c)
	case inEscape, inKeyEscape:
		s.escape(c)
	case inWord:
		s.inWord(c)
	case afterMinus, zeroDigit, intDigits, afterPoint, fracDigits, afterE, afterESign, expDigits:
		s.number(c)
	default:
		s.structure(c)
	}
}

// wide takes a byte of a character beyond ASCII, which only strings hold, and the byte order mark.
func (s *jsonScanner) wide(c byte) {
	s.partial = append(s.partial, c)
	if !utf8.FullRune(s.partial) {
		return
	}
	r, size := utf8.DecodeRune(s.partial)
	if r == utf8.RuneError && size < 2 || size < len(s.partial) {
		s.fail("not UTF-8")
		return
	}
	mark := r == '\ufeff' && s.n == 2
	if s.state != inString && s.state != inKey && !mark {
		s.fail("a character outside a string")
		return
	}
	s.partial = s.partial[:0]
}

func (s *jsonScanner) inText(c byte) {
	switch {
	case c == '"' && s.state == inKey:
		s.state = wantColon
	case c == '"':
		s.state = afterValue
	case c == '\\' && s.state == inKey:
		s.state = inKeyEscape
	case c == '\\':
		s.state = inEscape
	case c < 0x20:
		s.fail("a control character in a string")
	}
}

func (s *jsonScanner) escape(c byte) {
	text := inString
	if s.state == inKeyEscape {
		text = inKey
	}
	switch {
	case s.hex > 0:
		if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f') {
			s.fail(`\u without four digits`)
			return
		}
		if s.hex--; s.hex == 0 {
			s.state = text
		}
	case c == 'u':
		s.hex = 4
	case c == '"', c == '\\', c == '/', c == 'b', c == 'f', c == 'n', c == 'r', c == 't':
		s.state = text
	default:
		s.fail("an unknown escape")
	}
}

func (s *jsonScanner) inWord(c byte) {
	if c != s.word[0] {
		s.fail("an unknown word")
		return
	}
	if s.word = s.word[1:]; s.word == "" {
		s.state = afterValue
	}
}

// number takes a byte of a number, or the byte behind it.
func (s *jsonScanner) number(c byte) {
	digit := '0' <= c && c <= '9'
	switch {
	case s.state == afterMinus && c == '0':
		s.state = zeroDigit
	case s.state == afterMinus && digit, s.state == intDigits && digit:
		s.state = intDigits
	case s.state == afterMinus && c == 'I':
		s.word, s.state = "nfinity", inWord
	case s.state == afterPoint && digit, s.state == fracDigits && digit:
		s.state = fracDigits
	case s.state == afterE && (c == '+' || c == '-'):
		s.state = afterESign
	case (s.state == afterE || s.state == afterESign || s.state == expDigits) && digit:
		s.state = expDigits
	case (s.state == zeroDigit || s.state == intDigits) && c == '.':
		s.state = afterPoint
	case (s.state == zeroDigit || s.state == intDigits || s.state == fracDigits) && c|0x20 == 'e':
		s.state = afterE
	case s.complete():
		s.state = afterValue
		s.structure(c)
	default:
		s.fail("a number without digits")
	}
}

// structure takes what stands between strings, numbers and words.
func (s *jsonScanner) structure(c byte) {
	if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		return
	}
	switch s.state {
	case wantValue, firstValue:
		s.value(c)
	case firstKey, wantKey:
		s.key(c)
	case wantColon:
		if c != ':' {
			s.fail(`want ":"`)
			return
		}
		s.state = wantValue
	case afterValue:
		s.after(c)
	}
}

func (s *jsonScanner) value(c byte) {
	switch {
	case c == ']' && s.state == firstValue:
		s.pop()
	case c == '{':
		s.push(c, firstKey)
	case c == '[':
		s.push(c, firstValue)
	case c == '"':
		s.state = inString
	case c == '-':
		s.state = afterMinus
	case c == '0':
		s.state = zeroDigit
	case '1' <= c && c <= '9':
		s.state = intDigits
	default:
		s.startWord(c)
	}
}

func (s *jsonScanner) startWord(c byte) {
	s.state = inWord
	switch c {
	case 't':
		s.word = "rue"
	case 'f':
		s.word = "alse"
	case 'n':
		s.word = "ull"
	case 'N':
		s.word = "aN"
	case 'I':
		s.word = "nfinity"
	default:
		s.fail("want a value")
	}
}

func (s *jsonScanner) key(c byte) {
	switch {
	case c == '"':
		s.state = inKey
	case c == '}' && s.state == firstKey:
		s.pop()
	default:
		s.fail("want a key")
	}
}

func (s *jsonScanner) after(c byte) {
	switch {
	case len(s.stack) == 0:
		s.fail("something follows the value")
	case c == ',' && s.stack[len(s.stack)-1] == '{':
		s.state = wantKey
	case c == ',':
		s.state = wantValue
	case c == s.stack[len(s.stack)-1]+2: // '{' and '}', '[' and ']' are two apart
		s.pop()
	default:
		s.fail(`want "," or the end of the list`)
	}
}

func (s *jsonScanner) push(c byte, next jsonState) {
	if len(s.stack) == maxJSONDepth {
		s.fail("nested too deep")
		return
	}
	s.stack = append(s.stack, c)
	s.state = next
}

func (s *jsonScanner) pop() {
	s.stack = s.stack[:len(s.stack)-1]
	s.state = afterValue
}
