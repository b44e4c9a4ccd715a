// Package prompt reads request bodies: what a model server would prefill first, and for which model.
//
// What a Reader finds depends on the body's bytes alone, never on how they were cut into chunks, and equal
// conversations give equal text in every API dialect. It holds text up to PrefixLength and never the body,
// and no body is an error: what cannot be read as its dialect is read as raw bytes. docs/keys.md says what
// is in a key and what is not.
package prompt

import "math"

// Options bound what a Reader reads. Numbers that are not positive stand for the defaults.
type Options struct {
	// PrefixLength is how much is keyed: code points of text, bytes of a raw body.
	PrefixLength int
	// MaxInspectBytes is where a JSON body decides at the latest once PrefixLength characters are in hand;
	// at eight times as many bytes it decides with what is there.
	MaxInspectBytes int
}

// The defaults of Options.
const (
	DefaultPrefixLength    = 4096
	DefaultMaxInspectBytes = 1 << 20
)

// hardBound is how many times MaxInspectBytes a body is read at most.
const hardBound = 8

// Prompt is what a Reader found. Digests are 0 for what the body does not name.
type Prompt struct {
	Dialect   Dialect
	RawReason RawReason

	Model, CacheSalt, CacheKey, Tools uint64 // CacheKey is prompt_cache_key

	// Text is the routing text, PrefixLength characters at most, in a canonical spelling that is the
	// same for the same conversation in every dialect. Valid until the Reader's next Reset.
	Text []byte
	// HasText is false when there is neither text nor media to key by.
	HasText bool
	// Cut says that the prompt is PrefixLength long, or longer: Text is all of it that counts.
	Cut bool
	// Counted says that the model server only counts the prompt's tokens, and computes nothing.
	Counted bool
}

// Reader reads one body at a time, in chunks cut anywhere. The zero Reader is ready for Reset. A Reader
// that is used again allocates nothing, but for what a decompressor may; it must not be copied.
type Reader struct {
	options Options
	dialect Dialect
	reason  RawReason // NotRaw while the body may be JSON
	offset  int       // bytes of the body read, decompressed
	done    bool      // the key is known
	counted bool
	head    []byte // the first PrefixLength bytes of the body
	packed  packed
	body    body
	prompt  Prompt
}

// Reset makes the Reader ready for the body of a request. path may carry a query;
// contentEncoding is the header's value, "" when absent.
func (r *Reader) Reset(path, contentEncoding string, o Options) {
	if o.PrefixLength <= 0 {
		o.PrefixLength = DefaultPrefixLength
	}
	if o.MaxInspectBytes <= 0 {
		o.MaxInspectBytes = DefaultMaxInspectBytes
	}
	o.MaxInspectBytes = min(o.MaxInspectBytes, math.MaxInt/hardBound)
	r.options, r.dialect, r.reason = o, dialectOf(path), NotRaw
	r.offset, r.done, r.head, r.prompt = 0, false, r.head[:0], Prompt{}
	r.counted = countsTokens(path)
	r.packed.reset(contentEncoding, r.dialect)
	switch {
	case r.dialect == Raw:
		r.reason = RawPath
	case r.packed.unknown:
		r.reason = RawEncoding
	}
	r.body.reset(r.dialect, o.PrefixLength)
}

// Write reads the next chunk and says whether the key can be known; after that, Writes do nothing.
// It does not keep p.
func (r *Reader) Write(p []byte) (done bool) {
	if r.done || len(p) == 0 {
		return r.done
	}
	if !r.packed.holds(p[0]) {
		r.read(p)
		return r.done
	}
	room := r.options.MaxInspectBytes - len(r.packed.held)
	r.packed.held = append(r.packed.held, p[:min(len(p), room)]...)
	if len(p) >= room {
		r.unpack(false)
		r.read(p[min(len(p), room):])
	}
	return r.done
}

// Close says that the body has ended.
func (r *Reader) Close() {
	if r.packed.hold && !r.done {
		r.unpack(true)
	}
	if !r.done {
		r.end()
	}
}

// Prompt is what was found; call it after Write said done, or after Close.
func (r *Reader) Prompt() Prompt { return r.prompt }

// read takes plain bytes of the body. It stops at the offsets where the key may become known, so that
// these do not depend on chunks.
func (r *Reader) read(p []byte) {
	for len(p) > 0 && !r.done {
		chunk := p
		if r.reason == NotRaw {
			next := r.options.MaxInspectBytes
			if r.offset >= next {
				next *= hardBound
			}
			chunk = p[:min(len(p), next-r.offset)]
		}
		p = p[len(chunk):]
		r.offset += len(chunk)
		r.head = append(r.head, chunk[:min(len(chunk), r.options.PrefixLength-len(r.head))]...)
		if r.reason == NotRaw {
			r.readJSON(chunk)
		}
		if r.reason != NotRaw && len(r.head) == r.options.PrefixLength {
			r.finish()
		}
	}
}

func (r *Reader) readJSON(chunk []byte) {
	b := &r.body
	b.read(chunk)
	if b.bad != NotRaw {
		r.reason = b.bad
		return
	}
	if r.offset >= r.options.MaxInspectBytes && !b.past {
		b.past = true
		b.limitText()
	}
	if b.stop || b.past && b.inHand() || r.offset >= hardBound*r.options.MaxInspectBytes {
		r.finish()
	}
}

// end decides at the end of the body.
func (r *Reader) end() {
	if r.reason == NotRaw {
		switch r.body.state {
		case atEnd:
		case atStart:
			r.reason = RawEmpty
			if r.body.bom > 0 && r.body.bom < 3 {
				r.reason = RawNotObject
			}
		default:
			r.reason = RawTruncated
		}
	}
	r.finish()
}

// finish makes the prompt of what has been read.
func (r *Reader) finish() {
	r.done = true
	if r.reason == NotRaw {
		r.prompt = r.body.prompt()
	} else {
		r.prompt = Prompt{
			RawReason: r.reason, Text: r.head, HasText: len(r.head) > 0,
			Cut: len(r.head) == r.options.PrefixLength,
		}
	}
	r.prompt.Counted = r.counted
}

// reset makes the body reader ready.
func (b *body) reset(d Dialect, limit int) {
	b.state, b.depth, b.bom, b.slot, b.limit = atStart, 0, 0, noSlot, limit
	b.esc, b.past, b.stop, b.bad = unescaper{}, false, false, NotRaw
	b.media.d, b.tokens.d = &b.digest, &b.digest
	main, front := b.main, b.front
	b.document = document{dialect: d, main: main, front: front}
	b.main.reset(limit)
	b.front.reset(limit)
	b.startMessage(&b.main, message{bare: true})
}

// prompt is what the body says, as far as it has been read.
func (b *body) prompt() Prompt {
	if b.state == inString && b.slot == slotMedia {
		b.endString()
		b.endPart()
	}
	b.dst.seal(b.msg.mark, b.msg.role, b.msg.tools)
	text := &b.main
	if !b.front.empty() {
		text = &b.front
		text.max = b.limit
		text.append(&b.main)
	}
	text.finish()
	return Prompt{
		Dialect: b.dialect,
		Model:   b.model, CacheSalt: b.cacheSalt, CacheKey: b.cacheKey, Tools: b.allTools(),
		Text: text.buf, HasText: !text.empty(), Cut: text.full(),
	}
}
