package prompt

import (
	"bytes"

	"github.com/zeebo/xxh3"
)

// document is what has been understood of a body so far.
type document struct {
	dialect Dialect
	ids
	main  text  // the messages, or the prompt
	front text  // what goes before them, wherever it is in the body
	dst   *text // where text goes now
	msg   message
	prev  message // in Responses, the message that a next item may belong to
	parts [2]part // a content part; and one in a tool's result, which is a part itself
	level int     // of the content now: which of parts, texts
	texts [2]int  // text parts of the content so far that were not empty
	call  call
	tool  tool
	piece
}

// ids are digests of what is mixed into the key, 0 for what is not there.
type ids struct{ model, cacheSalt, cacheKey, tools, functions uint64 }

// piece is the state of the text or array that is being read.
type piece struct {
	fresh  bool // the text has no character yet
	bill   int  // how much of a billing header was seen; -1 when none is looked for
	first  bool // no prompt of several has been read
	legacy bool // the tools are functions
}

// message is a message that is being read.
type message struct {
	mark     int // where its mark is; -1 before its first text
	before   undo
	role     uint64
	tools    uint64 // digest of its tool calls
	kind     kind   // of an item in Responses
	bare     bool   // a prompt: no message
	content  bool   // there is content, if only an empty one
	results  bool   // tool results were among the parts
	reasoned bool   // a reasoning item belongs to it
}

// noMessage is what is read between messages.
var noMessage = message{mark: -1, bare: true}

func (m *message) addCall(c call) { m.tools = mix(m.tools, c.name, c.arguments) }

type call struct{ name, arguments uint64 }

// part is a content part that is being read. Its type may come last: text is taken at once, and taken back.
type part struct {
	before  undo
	kind    kind
	result  bool   // a tool's result was read
	images  bool   // the result has images
	media   uint64 // digest of the data
	mediaID uint64 // the id that a client vouches for instead
}

// undo is a place to go back to.
type undo struct {
	extent
	texts [2]int
}

func (b *body) here() undo { return undo{b.dst.here(), b.texts} }

func (b *body) undo(u undo) {
	b.dst.restore(u.extent)
	b.texts = u.texts
	if b.msg.mark >= u.length {
		b.msg.mark = -1
	}
}

// kind is what a part or item is, by its type.
type kind uint8

const (
	kindNone kind = iota
	kindText
	kindMedia
	kindReasoning
	kindToolUse
	kindToolResult
	kindMessage
	kindCall
	kindOutput
	kindOther
)

func kindOf(word []byte) kind {
	switch string(word) {
	case "text", "input_text", "output_text", "refusal", "thinking":
		return kindText
	case "image_url", "image", "input_image", "video_url", "audio_url", "input_audio", "file", "input_file",
		"document", "image_embeds", "audio_embeds", "video_embeds":
		return kindMedia
	case "reasoning":
		return kindReasoning
	case "tool_use":
		return kindToolUse
	case "tool_result":
		return kindToolResult
	case "message":
		return kindMessage
	case "function_call", "custom_tool_call":
		return kindCall
	case "function_call_output", "custom_tool_call_output":
		return kindOutput
	}
	return kindOther
}

func (b *body) setKind(k kind) {
	if b.stack[b.depth-1] == inMessage {
		b.msg.kind = k
	} else {
		b.parts[b.level].kind = k
	}
}

func roleOf(word []byte) uint64 {
	if string(word) == "developer" { // templates without that role are shown system
		return roleSystem
	}
	if len(word) == 0 {
		return 0
	}
	return max(xxh3.Hash(word), 1)
}

func (b *body) startMessage(dst *text, m message) {
	b.dst, b.level, b.texts, b.call = dst, 0, [2]int{}, call{}
	m.mark, m.before = -1, b.here()
	b.msg = m
}

// restart forgets a text.
func (b *body) restart(t *text) {
	t.clear()
	b.msg = noMessage
}

// clearContent forgets the content of the message.
func (b *body) clearContent() {
	b.undo(b.msg.before)
	b.msg.content, b.msg.results = false, false
	if b.dialect == Messages { // whose tool calls are parts of the content
		b.msg.tools = 0
	}
}

// openMark marks the beginning of the message, once, unless the text is cut before it.
func (b *body) openMark() {
	if b.level == 0 && !b.msg.bare && b.msg.mark < 0 {
		b.msg.mark = b.dst.mark(markMessage, b.msg.role, b.msg.tools)
	}
}

// endMessage ends a message with what is known only now: its role may have come last.
func (b *body) endMessage() {
	switch m := &b.msg; {
	case b.dialect == Responses:
		b.endItem()
	case b.dialect == Messages && m.mark < 0 && (m.role == roleSystem || m.role == roleUser && m.results):
		// Engines show a template no message where nothing but tool results, or nothing, was in it.
	default:
		b.openMark()
		b.dst.seal(m.mark, m.role, m.tools)
	}
	b.msg = noMessage
}

// endItem ends an item of Responses' input. Several items can be one message, as in vLLM 0.32.0's
// entrypoints/openai/responses/utils.py: an assistant's tool calls, reasoning and text.
func (b *body) endItem() {
	m, prev := &b.msg, &b.prev
	follows := prev.role == roleAssistant
	switch m.kind {
	case kindOutput:
		m.role = roleTool
	case kindNone, kindMessage:
		if follows && m.role == roleAssistant && m.content && !prev.content {
			if m.mark >= 0 {
				b.dst.unmark(m.mark, prev.mark)
			}
			prev.content = true
			return
		}
	case kindCall:
		b.clearContent()
		if follows {
			m = prev
		}
		m.role = roleAssistant
		m.addCall(b.call)
	case kindReasoning:
		b.clearContent()
		if follows && !prev.reasoned {
			m = prev
		}
		m.role, m.reasoned = roleAssistant, true
	default:
		b.undo(m.before)
		return
	}
	if m != prev {
		b.openMark()
		b.prev = *m
	}
	b.dst.seal(prev.mark, prev.role, prev.tools)
}

// openText begins a text, if the next value is one.
func (b *body) openText() bool {
	switch b.slot {
	case slotPrompt:
		b.startMessage(&b.main, message{bare: true})
	case slotTokenIDs:
		b.first = false
	case slotItems:
		b.startMessage(&b.main, message{role: roleUser})
	case slotFront:
		b.startMessage(&b.front, message{role: roleSystem})
	case slotContent:
		b.msg.content = true
	case slotResult:
		b.startResult()
	case slotPart, slotText:
	default:
		return false
	}
	b.limitText()
	b.fresh, b.bill = true, 0
	if b.msg.bare {
		b.bill = -1
	}
	return true
}

// addText takes text; where it fills the prompt and nothing more is waited for, the reader stops.
func (b *body) addText(p []byte) {
	if b.bill >= 0 {
		p = b.unbill(p)
	}
	if len(p) == 0 {
		return
	}
	if b.fresh {
		b.fresh = false
		b.openMark()
		// Text parts are joined as vLLM joins them for templates that want strings; those of a system
		// prompt in front are not.
		if b.texts[b.level] > 0 && b.dst == &b.main {
			b.dst.add(newline)
		}
		b.texts[b.level]++
	}
	b.dst.add(p)
	b.checkText()
}

// limitText makes room for as much text as the key has; where the reader stops once it is in hand, not
// for what would come after that: in front it would push out other text.
func (b *body) limitText() {
	b.dst.max = b.limit
	if b.past {
		b.dst.max -= b.main.chars + b.front.chars - b.dst.chars
	}
}

func (b *body) checkText() { b.stop = b.stop || b.past && b.inHand() }

// inHand says whether there are all characters that the key has room for.
func (b *body) inHand() bool { return b.main.chars+b.front.chars >= b.limit }

func (b *body) endText() {
	if b.bill > 0 && b.bill < len(billing) {
		held := billing[:b.bill]
		b.bill = -1
		b.addText(held)
	}
	b.dst.settle(true)
	if b.slot == slotResult {
		b.level = 0
	}
}

var (
	newline = []byte("\n")
	billing = []byte("x-anthropic-billing-header")
)

// unbill takes a billing header off a text's beginning: Claude Code sends one whose value changes with
// every request, and vLLM 0.32.0 drops it lest no prompt ever be cached (renderers/chat_utils.py): the
// block in Messages, the line elsewhere.
func (b *body) unbill(p []byte) []byte {
	for b.bill < len(billing) {
		if len(p) == 0 {
			return nil
		}
		if p[0] != billing[b.bill] {
			held := billing[:b.bill]
			b.bill = -1
			b.addText(held)
			return p
		}
		b.bill++
		p = p[1:]
	}
	end := bytes.IndexByte(p, '\n')
	if end < 0 || b.dialect == Messages && b.slot == slotText {
		return nil
	}
	b.bill = -1
	return p[end+1:]
}

func (b *body) startPart() {
	b.parts[b.level] = part{before: b.here()}
	if b.dialect == Messages {
		b.call = call{}
	}
}

// endPart ends a content part, whose type is known only now.
func (b *body) endPart() {
	p := &b.parts[b.level]
	media := p.media
	if p.mediaID != 0 {
		media = p.mediaID
	}
	switch {
	case p.kind == kindToolUse:
		b.undo(p.before)
		b.msg.addCall(b.call)
	case p.kind == kindToolResult || p.kind == kindNone && p.result:
		if !p.result {
			b.startResult()
			b.level = 0
		}
		b.msg.results = true
	case p.kind == kindMedia || p.kind == kindNone && media != 0:
		b.undo(p.before)
		b.addMedia(media)
	case p.kind == kindText || p.kind == kindNone:
		if p.result {
			b.undo(p.before)
		}
	default:
		b.undo(p.before)
	}
}

// addMedia marks an image, a sound or a file. In a tool's result it is a user's message of its own, as in
// vLLM 0.32.0's entrypoints/anthropic/serving.py.
func (b *body) addMedia(digest uint64) {
	if digest == 0 {
		return
	}
	b.openMark()
	if result := &b.parts[0]; b.level > 0 && !result.images {
		result.images = true
		b.dst.mark(markMessage, roleUser, 0)
	}
	b.dst.mark(markMedia, digest, 0)
}

// startResult begins a tool's result, which is a message of its own.
func (b *body) startResult() {
	b.dst.mark(markMessage, roleTool, 0)
	b.parts[0].result = true
	b.level, b.texts[1] = 1, 0
}
