package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf16"
)

// conversation is what a chat says, apart from the API it is said in. Its spellings are all that clients
// may send for it.
type conversation struct {
	model, salt, cacheKey, system string
	turns                         []turn
	tools                         []function
}

type turn struct {
	role    string // user, assistant or tool
	text    string
	image   string // base64; of a user
	calls   []function
	another bool // a text part after the image
}

// function is a tool's definition, or a call of it.
type function struct{ name, description, json string }

func newConversation(rng *rand.Rand) conversation {
	text := func() string { return randomText(rng) }
	c := conversation{}
	for _, s := range []*string{&c.model, &c.salt, &c.cacheKey, &c.system} {
		if rng.IntN(2) == 0 {
			*s = text()
		}
	}
	for range rng.IntN(3) {
		c.tools = append(c.tools, function{text(), text(), randomJSON(rng)})
	}
	for range 1 + rng.IntN(4) {
		t := turn{role: "user", text: text()}
		switch rng.IntN(3) {
		case 0:
			t.image = fmt.Sprintf("%08d", rng.IntN(1e8))
			t.another = rng.IntN(2) == 0
		case 1:
			t.role = "assistant"
			for range rng.IntN(3) {
				t.calls = append(t.calls, function{name: text(), json: randomJSON(rng)})
			}
		}
		c.turns = append(c.turns, t)
		for range t.calls {
			c.turns = append(c.turns, turn{role: "tool", text: text()})
		}
	}
	return c
}

func randomText(rng *rand.Rand) string {
	var b strings.Builder
	for range 1 + rng.IntN(12) {
		b.WriteString([]string{"a", "B", " ", "\n", `"`, `\`, "/", "\t", "\x01", "é", "€", "漢", "😀", "\uFFFD", "word ", "0"}[rng.IntN(16)])
	}
	return b.String()
}

// randomJSON is an object whose members have an order, for a schema or arguments.
func randomJSON(rng *rand.Rand) string {
	name, _ := json.Marshal(randomText(rng))
	return fmt.Sprintf(`{"type":"object","properties":{%s:{"type":"string","enum":[1,-2.5e3,true,null,"x"]}},"n":%d}`, name, rng.IntN(10))
}

// speller writes JSON in one of its many spellings.
type speller struct {
	rng *rand.Rand
	out strings.Builder
}

type (
	member struct {
		name  string
		value any
	}
	// object is spelled in any order of members, with unknown members and overridden ones between.
	object []member
	array  []any
	// verbatim is JSON whose members keep their order, but not white space or the spelling of strings.
	verbatim string
)

func (s *speller) space() {
	for s.rng.IntN(6) == 0 {
		s.out.WriteByte(" \n\r\t"[s.rng.IntN(4)])
	}
}

func (s *speller) value(v any) {
	s.space()
	switch v := v.(type) {
	case string:
		s.str(v)
	case object:
		s.object(v)
	case array:
		s.out.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				s.out.WriteByte(',')
			}
			s.value(e)
		}
		s.space()
		s.out.WriteByte(']')
	case verbatim:
		s.verbatim(string(v))
	default:
		fmt.Fprint(&s.out, v)
	}
	s.space()
}

func (s *speller) object(o object) {
	members := append(object{}, o...)
	s.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for i, m := range o { // an overridden member goes before the one that counts
		if s.rng.IntN(8) == 0 {
			wrong := []any{"wrong", nil, 5, array{}, object{}, array{"wrong", array{object{}}}}[s.rng.IntN(6)]
			members = append(object{{m.name, wrong}}, members...)
		}
		if s.rng.IntN(8) == 0 {
			unknown := []any{m.value, "x\\", `"`, 1.5, true, array{m.value, object{{"role", "x"}}}}[s.rng.IntN(6)]
			at := s.rng.IntN(len(members) + 1)
			members = append(members[:at:at], append(object{{fmt.Sprintf("Unknown%d", i), unknown}}, members[at:]...)...)
		}
	}
	s.out.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			s.out.WriteByte(',')
		}
		s.space()
		s.str(m.name)
		s.space()
		s.out.WriteByte(':')
		if m.value == nil {
			s.out.WriteString("null")
			continue
		}
		s.value(m.value)
	}
	s.space()
	s.out.WriteByte('}')
}

// str spells a string, with escapes that need not be.
func (s *speller) str(v string) {
	s.out.WriteByte('"')
	for _, r := range v {
		switch {
		case r < 0x20 || r == '"' || r == '\\':
			short, _ := json.Marshal(string(r))
			if s.rng.IntN(2) == 0 {
				s.out.Write(short[1 : len(short)-1])
				continue
			}
		case r == '/' && s.rng.IntN(2) == 0:
			s.out.WriteString(`\/`)
			continue
		case s.rng.IntN(6) > 0:
			s.out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&s.out, []string{`\u%04x`, `\u%04X`}[s.rng.IntN(2)], unit)
		}
	}
	s.out.WriteByte('"')
}

func (s *speller) verbatim(v string) {
	for len(v) > 0 {
		if v[0] != '"' {
			s.space()
			n := strings.IndexAny(v[1:], `",:{}[]`) + 1
			if n == 0 {
				n = len(v)
			}
			s.out.WriteString(v[:n])
			v = v[n:]
			continue
		}
		d := json.NewDecoder(strings.NewReader(v))
		var str string
		if err := d.Decode(&str); err != nil {
			panic(err)
		}
		s.str(str)
		v = v[d.InputOffset():]
	}
}

// respelled is the same JSON as a string, for a call's arguments.
func (s *speller) respelled(v string) string {
	inner := speller{rng: s.rng}
	inner.verbatim(v)
	return inner.out.String()
}

func (s *speller) maybe(o *object, name, value string) {
	if value != "" || s.rng.IntN(4) == 0 {
		*o = append(*o, member{name, value})
	}
}

// spell writes c as a request in a dialect.
func (c conversation) spell(rng *rand.Rand, d Dialect) request {
	s := &speller{rng: rng}
	body := object{{"stream", true}, {"temperature", 0.5}, {"user", "somebody"}}
	s.maybe(&body, "model", c.model)
	s.maybe(&body, "cache_salt", c.salt)
	s.maybe(&body, "prompt_cache_key", c.cacheKey)
	if len(c.tools) > 0 || rng.IntN(2) == 0 {
		body = append(body, member{"tools", s.tools(d, c.tools)})
	}
	var path string
	switch d {
	case Chat:
		path = pathChat
		body = append(body, member{"messages", s.chatMessages(c)})
	case Responses:
		path = pathResponses
		s.maybe(&body, "instructions", c.system)
		body = append(body, member{"input", s.items(c)})
	case Messages:
		path = pathMessages
		if c.system != "" && rng.IntN(2) == 0 {
			body = append(body, member{"system", array{object{{"type", "text"}, {"text", c.system}}}})
		} else {
			s.maybe(&body, "system", c.system)
		}
		body = append(body, member{"messages", s.anthropicMessages(c)})
	}
	s.value(body)
	return request{path, s.out.String()}
}

func (s *speller) tools(d Dialect, tools []function) array {
	all := array{}
	for _, t := range tools {
		f := object{{"name", t.name}, {"description", t.description}}
		switch d {
		case Chat:
			f = append(f, member{"parameters", verbatim(t.json)})
			all = append(all, object{{"type", "function"}, {"function", f}})
		case Responses:
			all = append(all, append(f, member{"parameters", verbatim(t.json)}, member{"type", "function"}))
		case Messages:
			all = append(all, append(f, member{"input_schema", verbatim(t.json)}))
		}
	}
	return all
}

// content is a text, or parts. kind is the dialect's name for a text part.
func (s *speller) content(t turn, kind string, image any) any {
	part := func(text string) any { return object{{"type", kind}, {"text", text}} }
	switch {
	case t.image != "" && t.another:
		return array{part(t.text), image, part("after")}
	case t.image != "":
		return array{part(t.text), image}
	case s.rng.IntN(2) == 0:
		return array{part(t.text)}
	}
	return t.text
}

func (s *speller) chatMessages(c conversation) array {
	messages := array{}
	if c.system != "" {
		messages = append(messages, object{
			{"role", []string{"system", "developer"}[s.rng.IntN(2)]}, {"content", s.content(turn{text: c.system}, "text", nil)},
		})
	}
	for _, t := range c.turns {
		image := object{{"type", "image_url"}, {"image_url", object{{"url", "data:image/png;base64," + t.image}}}}
		m := object{{"role", t.role}, {"content", s.content(t, "text", image)}}
		var calls array
		for _, f := range t.calls {
			calls = append(calls, object{{"type", "function"}, {"id", "x"}, {"function", object{{"name", f.name}, {"arguments", s.respelled(f.json)}}}})
		}
		if calls != nil {
			m = append(m, member{"tool_calls", calls})
		}
		messages = append(messages, m)
	}
	return messages
}

func (s *speller) items(c conversation) array {
	items := array{}
	for _, t := range c.turns {
		if t.role == "tool" {
			items = append(items, object{{"type", "function_call_output"}, {"call_id", "x"}, {"output", s.content(t, "input_text", nil)}})
			continue
		}
		image := object{{"type", "input_image"}, {"image_url", "data:image/jpeg;base64," + t.image}}
		kind := map[string]string{"user": "input_text", "assistant": "output_text"}[t.role]
		m := object{{"role", t.role}, {"content", s.content(t, kind, image)}}
		if s.rng.IntN(2) == 0 {
			m = append(m, member{"type", "message"})
		}
		items = append(items, m)
		for _, f := range t.calls {
			items = append(items, object{{"type", "function_call"}, {"call_id", "x"}, {"name", f.name}, {"arguments", s.respelled(f.json)}})
		}
	}
	return items
}

func (s *speller) anthropicMessages(c conversation) array {
	messages := array{}
	var results array // tool results are the next user message's first parts
	for i, t := range c.turns {
		if t.role == "tool" {
			results = append(results, object{{"type", "tool_result"}, {"tool_use_id", "x"}, {"content", s.content(t, "text", nil)}})
			if next := i + 1; next == len(c.turns) || c.turns[next].role == "assistant" {
				messages = append(messages, object{{"role", "user"}, {"content", results}})
				results = nil
			}
			continue
		}
		image := object{{"type", "image"}, {"source", object{{"type", "base64"}, {"media_type", "image/png"}, {"data", t.image}}}}
		content := s.content(t, "text", image)
		if text, ok := content.(string); ok && (results != nil || t.calls != nil) {
			content = array{object{{"type", "text"}, {"text", text}}}
		}
		if results != nil {
			content = slices.Concat(results, content.(array))
			results = nil
		}
		for _, f := range t.calls {
			content = append(content.(array), object{{"type", "tool_use"}, {"id", "x"}, {"name", f.name}, {"input", verbatim(f.json)}})
		}
		messages = append(messages, object{{"role", t.role}, {"content", content}})
	}
	return messages
}
