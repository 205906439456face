package safetensors

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pkg/errors"
)

// maxDepth bounds the nesting of values that are skipped.
const maxDepth = 64

// scanner reads JSON (RFC 8259) strictly, in one pass and without a tree: encoding/json replaces lone surrogates and
// invalid UTF-8, matches keys without regard to case and lets the last of two equal keys win. Strings without
// escapes are parts of text, not copies.
type scanner struct {
	text string // valid UTF-8
	pos  int
	kind error // ErrHeader or ErrIndex
}

func newScanner(text string, kind error) (*scanner, error) {
	s := &scanner{text: text, kind: kind}
	if !utf8.ValidString(text) {
		return nil, s.errorf("not valid UTF-8")
	}
	return s, nil
}

func (s *scanner) errorf(format string, args ...any) error {
	return errors.Wrapf(errors.WithMessagef(s.kind, format, args...), "byte %d", s.pos)
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) error {
	if s.peek() != c || s.pos == len(s.text) {
		return s.errorf("want %q", c)
	}
	s.pos++
	return nil
}

// end makes sure that only white space is left.
func (s *scanner) end() error {
	s.peek()
	if s.pos < len(s.text) {
		return s.errorf("%d bytes after the object", len(s.text)-s.pos)
	}
	return nil
}

// list reads what stands between open and end, separated by commas; item reads one.
func (s *scanner) list(open, end byte, item func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if s.peek() == end {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.peek() == end {
			s.pos++
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

func (s *scanner) array(item func() error) error { return s.list('[', ']', item) }

// object reads an object; value reads the value of a key. It is value that refuses a key seen before.
func (s *scanner) object(value func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return value(key)
	})
}

// str reads a string.
func (s *scanner) str() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start := s.pos
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == '"':
			s.pos++
			return s.text[start : s.pos-1], nil
		case c == '\\':
			return s.escaped(start)
		case c < 0x20:
			return "", s.errorf("control character in a string")
		}
		s.pos++
	}
	return "", s.errorf("string without an end")
}

// escaped reads the rest of a string from its first backslash.
func (s *scanner) escaped(start int) (string, error) {
	var b strings.Builder
	b.WriteString(s.text[start:s.pos])
	for s.pos < len(s.text) {
		c := s.text[s.pos]
		switch {
		case c == '"':
			s.pos++
			return b.String(), nil
		case c < 0x20:
			return "", s.errorf("control character in a string")
		case c != '\\':
			b.WriteByte(c)
			s.pos++
			continue
		}
		r, err := s.escape()
		if err != nil {
			return "", err
		}
		b.WriteRune(r)
	}
	return "", s.errorf("string without an end")
}

const (
	escapes     = `"\/bfnrt`
	escapeChars = "\"\\/\b\f\n\r\t"
)

// escape reads one escape sequence, a surrogate pair as one.
func (s *scanner) escape() (rune, error) {
	if s.pos+1 == len(s.text) {
		return 0, s.errorf("string without an end")
	}
	if c := s.text[s.pos+1]; c != 'u' {
		i := strings.IndexByte(escapes, c)
		if i < 0 {
			return 0, s.errorf(`unknown escape \%c`, c)
		}
		s.pos += 2
		return rune(escapeChars[i]), nil
	}
	r, err := s.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if !strings.HasPrefix(s.text[s.pos:], `\u`) {
		return 0, s.errorf("half of a surrogate pair")
	}
	low, err := s.hex4()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, s.errorf("half of a surrogate pair")
	}
	return r, nil
}

// hex4 reads \uXXXX.
func (s *scanner) hex4() (rune, error) {
	if len(s.text)-s.pos < 6 {
		return 0, s.errorf(`\u without four digits`)
	}
	var r rune
	for _, c := range []byte(s.text[s.pos+2 : s.pos+6]) {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, s.errorf(`\u without four digits`)
		}
	}
	s.pos += 6
	return r, nil
}

// uint reads a whole number of at least 0 and less than 2^63, written with digits alone.
func (s *scanner) uint() (int64, error) {
	s.peek()
	start := s.pos
	for s.pos < len(s.text) && isDigit(s.text[s.pos]) {
		s.pos++
	}
	digits := s.text[start:s.pos]
	switch {
	case digits == "":
		return 0, s.errorf("want a whole number of at least 0")
	case len(digits) > 1 && digits[0] == '0':
		return 0, s.errorf("number with a leading 0")
	case s.pos < len(s.text) && strings.IndexByte(".eE", s.text[s.pos]) >= 0:
		return 0, s.errorf("number with a fraction or an exponent")
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, s.errorf("number %.30s overflows", digits)
	}
	return n, nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// skip reads any value and returns its text.
func (s *scanner) skip(depth int) (string, error) {
	if depth > maxDepth {
		return "", s.errorf("nested more than %d deep", maxDepth)
	}
	c := s.peek()
	start, err := s.pos, error(nil)
	switch c {
	case '{':
		err = s.object(func(string) error { _, err := s.skip(depth + 1); return err })
	case '[':
		err = s.array(func() error { _, err := s.skip(depth + 1); return err })
	case '"':
		_, err = s.str()
	case 't':
		err = s.word("true")
	case 'f':
		err = s.word("false")
	case 'n':
		err = s.word("null")
	default:
		err = s.number()
	}
	return s.text[start:s.pos], err
}

func (s *scanner) word(w string) error {
	if !strings.HasPrefix(s.text[s.pos:], w) {
		return s.errorf("want %s", w)
	}
	s.pos += len(w)
	return nil
}

// number reads -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (s *scanner) number() error {
	s.accept("-")
	if !s.accept("0") && !s.digits() {
		return s.errorf("want a value")
	}
	if s.accept(".") && !s.digits() {
		return s.errorf("number without digits after the point")
	}
	if s.accept("eE") {
		s.accept("+-")
		if !s.digits() {
			return s.errorf("number without digits in the exponent")
		}
	}
	return nil
}

func (s *scanner) accept(chars string) bool {
	if s.pos == len(s.text) || strings.IndexByte(chars, s.text[s.pos]) < 0 {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.text) && isDigit(s.text[s.pos]) {
		s.pos++
	}
	return s.pos > start
}
