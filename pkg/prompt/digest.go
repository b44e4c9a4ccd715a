package prompt

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

var (
	roleSystem    = digestOf("system")
	roleUser      = digestOf("user")
	roleAssistant = digestOf("assistant")
	roleTool      = digestOf("tool")
)

// digestOf is the digest of an id: 0 if it is empty, else never 0. It is the same as pkg/prefix's, so that
// an id in a header and the same id in a body give the same key.
func digestOf(id string) uint64 {
	if id == "" {
		return 0
	}
	return max(xxh3.HashString(id), 1)
}

// mix is the digest of some digests in this order, never 0.
func mix(a, b, c uint64) uint64 {
	var buf [24]byte
	binary.LittleEndian.PutUint64(buf[0:], a)
	binary.LittleEndian.PutUint64(buf[8:], b)
	binary.LittleEndian.PutUint64(buf[16:], c)
	return max(xxh3.Hash(buf[:]), 1)
}

// digester hashes a string that comes in pieces.
type digester struct {
	h      xxh3.Hasher
	length int
}

func (d *digester) reset() {
	d.h.Reset()
	d.length = 0
}

func (d *digester) add(p []byte) {
	_, _ = d.h.Write(p) // never fails
	d.length += len(p)
}

// sum is what digestOf gives for the whole string.
func (d *digester) sum() uint64 {
	if d.length == 0 {
		return 0
	}
	return max(d.h.Sum64(), 1)
}

// mediaHead is how far into a value the start of a data URL is looked for.
const mediaHead = 256

// mediaDigester hashes an image, a sound or a file: what a data URL carries, whatever it says about the
// type, so that it equals the same data given bare; anything else as it is.
type mediaDigester struct {
	d    *digester
	head []byte // what has been seen, as long as it may be the start of a data URL
	done bool   // head is dealt with
}

func (m *mediaDigester) reset() {
	m.d.reset()
	m.head, m.done = m.head[:0], false
}

func (m *mediaDigester) add(p []byte) {
	for len(p) > 0 && !m.done {
		m.head = append(m.head, p[0])
		p = p[1:]
		m.look()
	}
	if len(p) > 0 {
		m.d.add(p)
	}
}

func (m *mediaDigester) look() {
	const scheme, base64 = "data:", ";base64,"
	n := len(m.head)
	switch {
	case n <= len(scheme) && string(m.head) != scheme[:n], n == mediaHead:
		m.settle()
	case m.head[n-1] == ',':
		if n >= len(base64) && string(m.head[n-len(base64):]) == base64 {
			m.head = m.head[:0]
		}
		m.settle()
	}
}

func (m *mediaDigester) settle() {
	m.d.add(m.head)
	m.head, m.done = m.head[:0], true
}

func (m *mediaDigester) sum() uint64 {
	m.settle()
	return m.d.sum()
}

// tokens hashes JSON as its tokens, so that neither white space nor the spelling of strings matters. It
// checks nothing: what is no JSON is hashed in the same way.
type tokens struct {
	d      *digester
	buf    [512]byte // tokens are short: they are gathered before they are hashed
	n      int
	depth  int
	str    bool
	object bool // the first token was a brace
	esc    unescaper
}

// Strings are hashed between these bytes, which no string has inside.
const (
	tokenQuote   = 0xFF
	tokenUnquote = 0xFE
)

func (t *tokens) reset() {
	t.d.reset()
	t.n, t.depth, t.str, t.object, t.esc = 0, 0, false, false, unescaper{}
}

// add takes JSON text, n bytes of it, until its first value has ended.
func (t *tokens) add(p []byte) (n int, ended bool) {
	for i := 0; i < len(p); {
		if t.str {
			out, n, end := t.esc.next(p[i:])
			t.put(out)
			i += n
			if end {
				t.str = false
				t.putByte(tokenUnquote)
			}
		} else {
			i += t.structure(p[i:])
		}
		if t.depth == 0 && !t.str {
			return i, true
		}
	}
	return len(p), false
}

// structure takes bytes outside strings, up to where a value may end.
func (t *tokens) structure(p []byte) int {
	for i, c := range p {
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case '"':
			t.str = true
			t.putByte(tokenQuote)
			return i + 1
		case '{', '[':
			t.object = t.object || c == '{' && t.n == 0 && t.d.length == 0
			t.depth++
		case '}', ']':
			t.depth--
			t.putByte(c)
			return i + 1
		}
		t.putByte(c)
	}
	return len(p)
}

func (t *tokens) putByte(c byte) {
	if t.n == len(t.buf) {
		t.flush()
	}
	t.buf[t.n] = c
	t.n++
}

func (t *tokens) put(p []byte) {
	if len(p) > len(t.buf)-t.n {
		t.flush()
		if len(p) > len(t.buf) {
			t.d.add(p)
			return
		}
	}
	t.n += copy(t.buf[t.n:], p)
}

func (t *tokens) flush() {
	t.d.add(t.buf[:t.n])
	t.n = 0
}

func (t *tokens) sum() uint64 {
	t.flush()
	return t.d.sum()
}

// arguments is the digest of a tool call's arguments: 0 for an empty object, and for what is no object,
// which engines read as an empty one.
func (t *tokens) arguments() uint64 {
	t.flush()
	if !t.object || t.d.length <= len("{}") {
		return 0
	}
	return t.d.sum()
}
