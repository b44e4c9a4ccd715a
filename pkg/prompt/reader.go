// Package prompt reads request bodies: what a model server would prefill first, and for which model.
//
// SKELETON: the contract others build on; the body is being written.
package prompt

// Dialect is the API that a request speaks.
type Dialect uint8

// The dialects, by path suffix.
const (
	Raw Dialect = iota
	Chat
	Completions
	Responses
	Embeddings
	Messages
)

// RawReason says why a body was read as raw.
type RawReason uint8

// Options bound what a Reader reads.
type Options struct {
	// PrefixLength: code points of text, bytes of a raw body.
	PrefixLength int
	// MaxInspectBytes is where a JSON body decides at the latest once PrefixLength characters are in hand.
	MaxInspectBytes int
}

// Prompt is what a Reader found. Digests are 0 for what the body does not name.
type Prompt struct {
	Dialect                           Dialect
	RawReason                         RawReason
	Model, CacheSalt, CacheKey, Tools uint64 // CacheKey is prompt_cache_key
	// Text is the routing text, PrefixLength characters at most, in a canonical spelling that is the
	// same for the same conversation in every dialect. Valid until the Reader's next Reset.
	Text []byte
	// HasText is false when there is neither text nor media to key by.
	HasText bool
}

// Reader reads one body at a time, in chunks cut anywhere. The zero Reader is ready for Reset.
type Reader struct{ _ int }

// Reset makes the Reader ready for the body of a request. path may carry a query;
// contentEncoding is the header's value, "" when absent.
func (r *Reader) Reset(path, contentEncoding string, o Options) {}

// Write reads the next chunk and says whether the key can be known; after that, Writes do nothing.
// It does not keep p.
func (r *Reader) Write(p []byte) (done bool) { return false }

// Close says that the body has ended.
func (r *Reader) Close() {}

// Prompt is what was found; call it after Write said done, or after Close.
func (r *Reader) Prompt() Prompt { return Prompt{} }
