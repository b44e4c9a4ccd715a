package prompt

// A body reads a JSON request body, pushed in pieces that are cut anywhere. It builds no document and does
// not recurse: values on the way to the text are on a stack whose depth the API's shape bounds, all others
// are passed over by counting brackets. This file knows JSON; fields.go, values.go,
// messages.go and tools.go know the APIs.
type body struct {
	lexer
	hashes
	limit int       // characters that the key has room for
	past  bool      // from here on the key is known as soon as the text is
	stop  bool      // the key is known, or the body is bad
	bad   RawReason // why the body is bad
	document
}

// lexer is where in the JSON the reader is.
type lexer struct {
	state lexState
	stack [maxContainers]container
	depth int // of the stack
	bom   int // bytes of a byte order mark seen
	slot  slot
	sink  sink
	esc   unescaper
	word  []byte // a name, a number, a role or a type: what is looked at as a whole
	skip  skipper
}

// hashes are at work one at a time, all on one digester.
type hashes struct {
	digest digester
	media  mediaDigester
	tokens tokens
}

type lexState uint8

const (
	atStart   lexState = iota // before the object
	atValue                   // after a colon, or after a comma in an array
	atElement                 // after an opening bracket: a value or the end
	atMember                  // after an opening brace: a name or the end
	atName                    // after a comma in an object
	inName
	atColon
	afterValue
	inString // a string that is wanted
	inScalar
	inSkip   // a value that is not wanted
	inTokens // a value whose tokens are hashed
	atEnd
)

// maxWord is how much of a name, number, role or type is looked at.
const maxWord = 64

// read takes the next piece of the body.
func (b *body) read(p []byte) {
	for i := 0; i < len(p) && !b.stop; {
		switch b.state {
		case inName:
			i += b.name(p[i:])
		case inString:
			i += b.str(p[i:])
		case inScalar:
			i += b.scalar(p[i:])
		case inSkip:
			n, ended := b.skip.run(p[i:])
			if i += n; ended {
				b.state = afterValue
				b.endString()
			}
		case inTokens:
			n, ended := b.tokens.add(p[i:])
			if i += n; ended {
				b.state = afterValue
				b.endTokens()
			}
		default:
			c := p[i]
			i++
			if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
				b.structure(c)
			}
		}
	}
}

// structure takes a byte between values that is not white space.
func (b *body) structure(c byte) {
	switch b.state {
	case atStart:
		b.start(c)
	case atElement, atValue:
		if c == ']' && b.state == atElement {
			b.close()
			return
		}
		b.value(c)
	case atMember, atName:
		switch {
		case c == '}' && b.state == atMember:
			b.close()
		case c == '"':
			b.state, b.word, b.esc = inName, b.word[:0], unescaper{}
		default:
			b.fail(RawSyntax)
		}
	case atColon:
		if c != ':' {
			b.fail(RawSyntax)
			return
		}
		b.state = atValue
	case afterValue:
		b.next(c)
	default:
		b.fail(RawTrailing)
	}
}

func (b *body) start(c byte) {
	const bom = "\uFEFF"
	switch {
	case c == '{' && (b.bom == 0 || b.bom == len(bom)):
		b.push(inRoot)
	case b.bom < len(bom) && c == bom[b.bom]:
		b.bom++
	default:
		b.fail(RawNotObject)
	}
}

// next takes what follows a value.
func (b *body) next(c byte) {
	switch array := b.stack[b.depth-1].array(); {
	case c == ',' && !array:
		b.state = atName
	case c == ',':
		b.state = atValue
		if b.passed() {
			b.depth--
			b.skip, b.slot, b.state = skipper{depth: 1}, noSlot, inSkip
		}
	case c == '}' && !array, c == ']' && array:
		b.close()
	default:
		b.fail(RawSyntax)
	}
}

// value takes the first byte of a value.
func (b *body) value(c byte) {
	if in := b.stack[b.depth-1]; in.array() {
		b.slot = b.element(in)
	}
	switch c {
	case '"':
		b.esc = unescaper{}
		if b.sink = b.openString(); b.sink == noSink {
			b.skip, b.state = skipper{str: true}, inSkip
		} else {
			b.state = inString
		}
	case '{', '[':
		switch in := b.openContainer(c == '['); in {
		case inNothing:
			b.skip, b.slot, b.state = skipper{depth: 1}, noSlot, inSkip
		case inAnything:
			b.tokens.reset()
			b.tokens.add([]byte{c})
			b.state = inTokens
		default:
			b.push(in)
		}
	default:
		if !scalarByte[c] {
			b.fail(RawSyntax)
			return
		}
		b.word, b.state = append(b.word[:0], c), inScalar
	}
}

func (b *body) push(in container) {
	b.stack[b.depth] = in
	b.depth++
	if b.state = atMember; in.array() {
		b.state = atElement
	}
}

func (b *body) close() {
	b.depth--
	b.leave(b.stack[b.depth])
	if b.state = afterValue; b.depth == 0 {
		b.state = atEnd
	}
}

func (b *body) fail(why RawReason) { b.bad, b.stop = why, true }

// name takes bytes of a member's name.
func (b *body) name(p []byte) int {
	out, n, ended := b.esc.next(p)
	b.addWord(out)
	if ended {
		b.state = atColon
		b.slot = b.member(b.stack[b.depth-1])
	}
	return n
}

func (b *body) addWord(p []byte) {
	b.word = append(b.word, p[:min(len(p), maxWord-len(b.word))]...)
}

// str takes bytes of a string that is wanted.
func (b *body) str(p []byte) int {
	if b.sink == toText && b.plain() {
		if n := b.dst.addPlain(p); n > 0 {
			b.checkText()
			b.passText()
			return n
		}
	}
	out, n, ended := b.esc.next(p)
	switch b.sink {
	case toText:
		b.addText(out)
		if !ended {
			b.passText()
		}
	case toWord:
		b.addWord(out)
	case toDigest:
		b.digest.add(out)
	case toMedia:
		b.media.add(out)
	case toTokens:
		for len(out) > 0 {
			k, _ := b.tokens.add(out)
			out = out[k:]
		}
	case toPayload:
		b.tokens.put(out)
	}
	if ended {
		b.state = afterValue
		b.endString()
	}
	return n
}

// passText passes over the rest of a text that there is no room for.
func (b *body) passText() {
	if b.dst.full() && b.esc.state == 0 {
		b.skip, b.state = skipper{str: true}, inSkip
	}
}

// plain says whether text can be added as it is.
func (b *body) plain() bool {
	return b.esc.state == 0 && b.esc.high == 0 && !b.fresh && b.bill < 0 && b.dst.parted == 0
}

// scalarByte has the bytes of numbers and literals.
var scalarByte = func() (is [256]bool) {
	for _, c := range []byte("+-.0123456789EINaefilnrstuy") {
		is[c] = true
	}
	return is
}()

// scalar takes bytes of a number or literal; the byte that ends it is left.
func (b *body) scalar(p []byte) int {
	n := 0
	for n < len(p) && scalarByte[p[n]] {
		n++
	}
	b.addWord(p[:n])
	if n == len(p) {
		return n
	}
	b.state = afterValue
	if !isScalar(b.word) {
		b.fail(RawSyntax)
		return n
	}
	b.endScalar()
	return n
}

// isScalar says whether w is one of JSON's literals, or one of those that Python's parsers take, or made
// of a number's characters.
func isScalar(w []byte) bool {
	switch string(w) {
	case "true", "false", "null", "NaN", "Infinity", "-Infinity":
		return true
	}
	for _, c := range w {
		if c > '9' && c != 'e' && c != 'E' {
			return false
		}
	}
	return w[0] == '-' || '0' <= w[0] && w[0] <= '9'
}
