package prompt

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// Eight bytes are looked at per step. A byte of zeros(v) has its high bit set where v's byte is zero; bits
// above the first such byte may be wrong, so only the lowest one is used.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

func zeros(v uint64) uint64 { return (v - ones) & ^v & highs }

// plainRun is the length of the start of a JSON string's inside that stands for itself.
func plainRun(p []byte) int {
	i := 0
	for ; i+8 <= len(p); i += 8 {
		w := binary.LittleEndian.Uint64(p[i:])
		if m := zeros(w^('"'*ones)) | zeros(w^('\\'*ones)); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(p) && p[i] != '"' && p[i] != '\\'; i++ {
	}
	return i
}

// asciiRun is the length of the ASCII start of p.
func asciiRun(p []byte) int {
	i := 0
	for ; i+8 <= len(p); i += 8 {
		if m := binary.LittleEndian.Uint64(p[i:]) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(p) && p[i] < utf8.RuneSelf; i++ {
	}
	return i
}

// skipper passes over one JSON value. It counts brackets and knows strings; it checks nothing else.
type skipper struct {
	depth  int
	str    bool // inside a string
	escape bool // after a backslash
}

// run passes over p, n bytes of it, until the value has ended.
func (s *skipper) run(p []byte) (n int, ended bool) {
	for n < len(p) {
		switch {
		case s.str:
			n += s.inString(p[n:])
			ended = s.depth == 0 && !s.str
		case len(p)-n >= blockSize:
			k := 0
			k, ended = s.block((*[blockSize]byte)(p[n:]))
			n += k
		default:
			ended = s.step(p[n])
			n++
		}
		if ended {
			return n, true
		}
	}
	return n, false
}

// inString passes over the inside of a string, which is long more often than not.
func (s *skipper) inString(p []byte) int {
	if s.escape {
		s.escape = false
		return 1
	}
	i := bytes.IndexByte(p, '"')
	if i < 0 {
		s.escape = endsInEscape(p)
		return len(p)
	}
	s.str = endsInEscape(p[:i])
	return i + 1
}

// step passes over one byte outside strings.
func (s *skipper) step(c byte) (ended bool) {
	if s.escape { // no JSON; block sees it so
		s.escape = false
		return false
	}
	switch c {
	case '\\':
		s.escape = true
	case '"':
		s.str = true
	case '{', '[':
		s.depth++
	case '}', ']':
		s.depth--
	}
	return s.depth == 0 && !s.str
}

const blockSize = 64

// block passes over a block that begins outside strings, however many strings begin and end in it: a bit
// for each byte says what it is.
func (s *skipper) block(p *[blockSize]byte) (n int, ended bool) {
	var quotes, slashes, opens, closes uint64
	for i := 0; i < blockSize; i += 8 {
		w := binary.LittleEndian.Uint64(p[i:])
		folded := w | 0x20*ones // [ is {, and ] is }
		quotes |= bitsOf(w^('"'*ones)) << (i & 63)
		slashes |= bitsOf(w^('\\'*ones)) << (i & 63)
		opens |= bitsOf(folded^('{'*ones)) << (i & 63)
		closes |= bitsOf(folded^('}'*ones)) << (i & 63)
	}
	escaped := s.escaped(slashes)
	quotes &^= escaped
	inside := prefixXor(quotes)
	opens &^= inside | escaped
	closes &^= inside | escaped
	if bits.OnesCount64(closes) < s.depth {
		s.depth += bits.OnesCount64(opens) - bits.OnesCount64(closes)
		s.str = inside>>(blockSize-1) == 1
		return blockSize, false
	}
	for both := opens | closes; both != 0; both &= both - 1 {
		at := bits.TrailingZeros64(both)
		if opens>>at&1 == 1 {
			s.depth++
		} else if s.depth--; s.depth == 0 {
			return at + 1, true
		}
	}
	s.str = inside>>(blockSize-1) == 1
	return blockSize, false
}

// escaped has the bits of the bytes that a backslash goes before.
func (s *skipper) escaped(slashes uint64) (escaped uint64) {
	if s.escape {
		s.escape, escaped = false, 1
		slashes &^= 1
	}
	for slashes != 0 {
		at := bits.TrailingZeros64(slashes)
		escaped |= 2 << at
		s.escape = at == blockSize-1
		slashes &^= 3 << at
	}
	return escaped
}

// bitsOf has a bit for each byte of v, set where it is zero.
func bitsOf(v uint64) uint64 {
	zero := ^((v&^highs + ^uint64(highs)) | v) & highs
	return zero >> 7 * 0x0102040810204080 >> 56
}

// prefixXor has, at each bit, the parity of v's bits up to it.
func prefixXor(v uint64) uint64 {
	for shift := 1; shift < 64; shift *= 2 {
		v ^= v << shift
	}
	return v
}

// endsInEscape says whether p, which begins outside an escape, ends after an odd number of backslashes.
func endsInEscape(p []byte) bool {
	n := len(p)
	for n > 0 && p[n-1] == '\\' {
		n--
	}
	return (len(p)-n)%2 == 1
}

// unescaper decodes the inside of a JSON string, piece by piece. Lone surrogates become U+FFFD, and so
// does an escape that JSON does not know: it is never an error.
type unescaper struct {
	state uint8 // 0 outside an escape, 1 after a backslash, 2..5 before the 1st..4th hex digit
	code  rune
	high  rune // a high surrogate that waits for its other half
	buf   [2 * utf8.UTFMax]byte
}

const replacement = "\uFFFD"

// next decodes some of p, which must not be empty: n bytes of it, to out, which is valid until the next
// call. ended says that these bytes ended with the closing quote.
func (u *unescaper) next(p []byte) (out []byte, n int, ended bool) {
	c := p[0]
	switch u.state {
	case 0:
		if c == '\\' {
			u.state = 1
			return nil, 1, false
		}
		if u.high != 0 {
			u.high = 0
			return append(u.buf[:0], replacement...), 0, false
		}
		if c == '"' {
			return nil, 1, true
		}
		n = plainRun(p)
		return p[:n], n, false
	case 1:
		if c == 'u' {
			u.state, u.code = 2, 0
			return nil, 1, false
		}
		if u.high != 0 {
			u.high = 0
			return append(u.buf[:0], replacement...), 0, false
		}
		u.state = 0
		if simpleEscapes[c] == 0 {
			return append(u.buf[:0], replacement...), 1, false
		}
		return append(u.buf[:0], simpleEscapes[c]), 1, false
	}
	digit := hexDigit(c)
	if digit < 0 { // a broken escape; what broke it stands for itself
		u.state, u.high = 0, 0
		return append(u.buf[:0], replacement...), 0, false
	}
	u.code = u.code<<4 | digit
	if u.state++; u.state < 6 {
		return nil, 1, false
	}
	u.state = 0
	return u.unit(u.code), 1, false
}

// unit takes a UTF-16 code unit. A high surrogate that turns out alone comes out with what follows it.
func (u *unescaper) unit(r rune) []byte {
	high := u.high
	u.high = 0
	out := u.buf[:0]
	if high != 0 {
		if pair := utf16.DecodeRune(high, r); pair != utf8.RuneError {
			return utf8.AppendRune(out, pair)
		}
		out = append(out, replacement...)
	}
	if r >= 0xD800 && r < 0xDC00 {
		u.high = r
		return out
	}
	return utf8.AppendRune(out, r)
}

func hexDigit(c byte) rune {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0')
	case 'a' <= c && c <= 'f':
		return rune(c - 'a' + 10)
	case 'A' <= c && c <= 'F':
		return rune(c - 'A' + 10)
	}
	return -1
}
