package agreement

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// object is a JSON object whose members keep their order, and may repeat.
type object []member

type member struct {
	name  string
	value any // object, list, string, number, bool, nil, or raw
}

type list []any

// raw is JSON written as it is.
type raw string

// obj makes an object of name, value, name, value...
func obj(pairs ...any) object {
	var o object
	for i := 0; i < len(pairs); i += 2 {
		o = append(o, member{pairs[i].(string), pairs[i+1]})
	}
	return o
}

// with is the object with members added.
func (o object) with(pairs ...any) object { return append(o[:len(o):len(o)], obj(pairs...)...) }

// plain is the value as a client would write it.
func plain(v any) string { return (&speller{}).write(v) }

// spelled is the same value in another spelling: white space, escapes, and the order of members at the
// first levels, where no template sees it.
func spelled(v any, r *rand.Rand) string { return (&speller{r: r, shuffle: 1}).write(v) }

type speller struct {
	r       *rand.Rand // nil: no spelling of its own
	shuffle int        // levels of objects whose members may change places
	b       strings.Builder
}

func (s *speller) write(v any) string {
	s.value(v)
	return s.b.String()
}

func (s *speller) value(v any) {
	s.space()
	switch v := v.(type) {
	case object:
		s.object(v)
	case list:
		s.b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				s.b.WriteByte(',')
			}
			s.value(e)
		}
		s.b.WriteByte(']')
	case string:
		s.str(v)
	case raw:
		s.b.WriteString(string(v))
	default:
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		s.b.Write(b)
	}
	s.space()
}

func (s *speller) object(o object) {
	order := make([]int, len(o))
	for i := range order {
		order[i] = i
	}
	if s.r != nil && s.shuffle > 0 {
		order = s.r.Perm(len(o))
	}
	s.shuffle--
	s.b.WriteByte('{')
	for i, at := range order {
		if i > 0 {
			s.b.WriteByte(',')
		}
		s.space()
		s.str(o[at].name)
		s.space()
		s.b.WriteByte(':')
		s.value(o[at].value)
	}
	s.b.WriteByte('}')
	s.shuffle++
}

func (s *speller) str(v string) {
	if s.r == nil {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		s.b.Write(b)
		return
	}
	s.b.WriteByte('"')
	for _, c := range v {
		switch {
		case c == '"' || c == '\\':
			s.b.WriteByte('\\')
			s.b.WriteRune(c)
		case c < 0x20 || s.r.IntN(12) == 0:
			s.escape(c)
		default:
			s.b.WriteRune(c)
		}
	}
	s.b.WriteByte('"')
}

func (s *speller) escape(c rune) {
	if c > 0xFFFF {
		c -= 0x10000
		fmt.Fprintf(&s.b, `\u%04X\u%04x`, 0xD800+c>>10, 0xDC00+c&0x3FF)
		return
	}
	fmt.Fprintf(&s.b, `\u%04x`, c)
}

func (s *speller) space() {
	if s.r != nil && s.r.IntN(3) == 0 {
		s.b.WriteString([]string{" ", "\n", "\t  ", "\r\n"}[s.r.IntN(4)])
	}
}
