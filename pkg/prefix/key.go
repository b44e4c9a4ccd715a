// Package prefix turns routing text into prefix keys.
//
// A key is a pure function of its inputs: every replica, every build and every architecture gives the
// same key for the same prompt, so replicas agree on homes with nothing shared.
package prefix

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Key is a 64-bit hash of the start of a prompt, its model and its isolation id. Equal keys belong at
// the same home; two different prompts share one by accident about once in 2^64.
type Key uint64

// Scope is what must be equal, beside the text, for two prompts to share KV cache: digests, 0 for what
// a request does not name.
type Scope struct {
	Model     uint64
	CacheSalt uint64
	// Isolation is the digest of the id under which a client wants prompts kept apart.
	Isolation uint64
	// Tools is the digest of the tools a chat template renders at the prompt's start.
	Tools uint64
}

// Of is the key of a routing text under a scope.
func Of(scope Scope, text []byte) Key { return OfDigest(scope, xxh3.Hash(text)) }

// OfDigest is the key of a routing text whose xxh3 digest is at hand.
func OfDigest(scope Scope, text uint64) Key {
	var b [40]byte
	binary.LittleEndian.PutUint64(b[0:], scope.Model)
	binary.LittleEndian.PutUint64(b[8:], scope.CacheSalt)
	binary.LittleEndian.PutUint64(b[16:], scope.Isolation)
	binary.LittleEndian.PutUint64(b[24:], scope.Tools)
	binary.LittleEndian.PutUint64(b[32:], text)
	return Key(xxh3.Hash(b[:]))
}

// Digest is the digest of an id that is given as text, never 0 unless the text is empty.
func Digest(id string) uint64 {
	if id == "" {
		return 0
	}
	return max(xxh3.HashString(id), 1)
}
