package prompt

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// The routing text is valid UTF-8 with marks between, which no character can be taken for: the byte 0xFF,
// the mark's kind, and two digests. Marks are hashed with the text but are no characters of it.
const (
	markByte = 0xFF
	markSize = 2 + 8 + 8
	// maxMarks bounds the marks of a prompt; later ones are left out.
	maxMarks = 4096

	// markMessage begins a message: digests of its role and of its tool calls.
	markMessage = 'M'
	// markMedia stands for an image, a sound or a file: the digest of its data, and nothing.
	markMedia = 'D'
	// markTokens begins a prompt of token ids, which follow as eight bytes each.
	markTokens = 'T'

	// tokenChars is how many characters a token id counts for.
	tokenChars = 4
)

// text is routing text under construction, at most max characters.
type text struct {
	buf  []byte
	max  int
	part [utf8.UTFMax]byte // the start of a character that the last chunk cut
	extent
}

// extent is how much text there is; going back to an earlier extent takes back what came after it.
type extent struct {
	length  int // of buf, in an extent that is kept
	chars   int
	marks   int
	media   int
	message int // where the last message begins in buf; -1 before the first
	parted  int // bytes of a cut character that are in hand
}

func (t *text) reset(limit int) {
	t.max = limit
	t.clear()
}

func (t *text) clear()     { t.restore(extent{message: -1}) }
func (t *text) full() bool { return t.chars >= t.max }

// empty says that there is nothing to key by.
func (t *text) empty() bool { return t.chars == 0 && t.media == 0 }

// here is the extent up to now.
func (t *text) here() extent {
	e := t.extent
	e.length = len(t.buf)
	return e
}

func (t *text) restore(e extent) { t.buf, t.extent = t.buf[:e.length], e }

// add appends text as far as there is room. A character may be cut between two calls.
func (t *text) add(p []byte) {
	for len(p) > 0 && !t.full() {
		if t.parted > 0 {
			t.part[t.parted] = p[0]
			t.parted++
			p = p[1:]
			t.settle(false)
			continue
		}
		n := asciiRun(p[:min(len(p), t.max-t.chars)])
		t.buf = append(t.buf, p[:n]...)
		t.chars += n
		p = t.addWide(p[n:])
	}
}

// simpleEscapes are what a backslash and a character stand for, 0 where that is not one character.
var simpleEscapes = [256]byte{
	'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/',
}

// addPlain is the fast path for most of a JSON string's inside: ASCII and simple escapes. It takes as much
// of p as is that, leaving a few bytes at its end and at the text's, and returns how much.
func (t *text) addPlain(p []byte) int {
	const word = 8
	room := t.max - t.chars
	t.buf = slices.Grow(t.buf, min(room, len(p))+word)
	out := t.buf[len(t.buf):cap(t.buf)]
	in, n := 0, 0
	for in+word <= len(p) && n+word <= room {
		w := binary.LittleEndian.Uint64(p[in:])
		binary.LittleEndian.PutUint64(out[n:], w)
		m := zeros(w^('"'*ones)) | zeros(w^('\\'*ones)) | w&highs
		if m == 0 {
			in, n = in+word, n+word
			continue
		}
		k := bits.TrailingZeros64(m) / 8
		in, n = in+k, n+k
		if in+1 == len(p) || p[in] != '\\' || simpleEscapes[p[in+1]] == 0 {
			break
		}
		out[n] = simpleEscapes[p[in+1]]
		in, n = in+2, n+1
	}
	t.buf = t.buf[:len(t.buf)+n]
	t.chars += n
	return in
}

// addWide appends the characters beyond ASCII that p begins with, and returns the rest of p.
func (t *text) addWide(p []byte) []byte {
	for len(p) > 0 && p[0] >= utf8.RuneSelf && !t.full() {
		if !utf8.FullRune(p) {
			t.parted = copy(t.part[:], p)
			return nil
		}
		p = p[t.addRune(p):]
	}
	return p
}

// addRune appends the character that p begins with, and returns its size in p.
func (t *text) addRune(p []byte) int {
	r, size := utf8.DecodeRune(p)
	if r == utf8.RuneError && size == 1 {
		t.buf = append(t.buf, replacement...)
	} else {
		t.buf = append(t.buf, p[:size]...)
	}
	t.chars++
	return size
}

// settle appends what is known of a cut character; at the end of a string, all of it.
func (t *text) settle(end bool) {
	for t.parted > 0 && (end || utf8.FullRune(t.part[:t.parted])) {
		if t.full() {
			t.parted = 0
			break
		}
		size := t.addRune(t.part[:t.parted])
		t.parted = copy(t.part[:], t.part[size:t.parted])
	}
}

// mark appends a mark and returns where it begins, or -1 if there is no room for it.
func (t *text) mark(kind byte, a, b uint64) int {
	if t.full() || t.marks >= maxMarks {
		return -1
	}
	t.marks++
	t.buf = append(t.buf, markByte, kind)
	t.buf = binary.LittleEndian.AppendUint64(t.buf, a)
	t.buf = binary.LittleEndian.AppendUint64(t.buf, b)
	at := len(t.buf) - markSize
	switch kind {
	case markMessage:
		t.message = at
	case markMedia:
		t.media++
	}
	return at
}

// seal writes the digests of the message that begins at the mark at.
func (t *text) seal(at int, role, tools uint64) {
	if at >= 0 {
		binary.LittleEndian.PutUint64(t.buf[at+2:], role)
		binary.LittleEndian.PutUint64(t.buf[at+10:], tools)
	}
}

// unmark takes out the mark of a message whose text belongs to the message before, at prev.
func (t *text) unmark(at, prev int) {
	t.buf = append(t.buf[:at], t.buf[at+markSize:]...)
	t.marks--
	t.message = prev
}

// token appends a token id.
func (t *text) token(id uint64) {
	if t.chars == 0 {
		t.mark(markTokens, 0, 0)
	}
	if !t.full() {
		t.buf = binary.LittleEndian.AppendUint64(t.buf, id)
		t.chars = min(t.chars+tokenChars, t.max)
	}
}

// append adds the start of another text, as far as there is room.
func (t *text) append(o *text) {
	end, message := len(o.buf), o.message
	if room := t.max - t.chars; o.chars >= room {
		end, message = cut(o.buf, room)
	}
	if message >= 0 {
		t.message = len(t.buf) + message
	}
	t.buf = append(t.buf, o.buf[:end]...)
	t.chars = min(t.chars+o.chars, t.max)
	t.media += o.media
}

// finish ends the text. Where it is cut, the message that the cut is in has lost what follows its text.
func (t *text) finish() {
	if t.full() && t.message >= 0 {
		binary.LittleEndian.PutUint64(t.buf[t.message+10:], 0)
	}
}

// cut says where the first n characters of b end, and where the last message before that begins.
func cut(b []byte, n int) (end, message int) {
	message = -1
	for end < len(b) && n > 0 {
		switch c := b[end]; {
		case c < utf8.RuneSelf:
			run := asciiRun(b[end:min(len(b), end+n)])
			end += run
			n -= run
		case c == markByte:
			if b[end+1] == markMessage {
				message = end
			}
			end += markSize
		default:
			_, size := utf8.DecodeRune(b[end:])
			end += size
			n--
		}
	}
	return end, message
}

// NextMessage is where the next message of a chat's routing text begins behind at, which is 0 or where one
// begins; len(text) if there is none. A text cut there is the text of the conversation up to that message.
func NextMessage(text []byte, at int) int {
	if at < len(text) && text[at] == markByte {
		at += markSize
	}
	for at < len(text) {
		switch c := text[at]; {
		case c < utf8.RuneSelf:
			at += asciiRun(text[at:])
		case c != markByte:
			_, size := utf8.DecodeRune(text[at:])
			at += size
		case at+1 < len(text) && text[at+1] == markMessage:
			return at
		default:
			at += markSize
		}
	}
	return len(text)
}
