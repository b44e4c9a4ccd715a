package prompt

import "strings"

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
	numDialects
)

var dialectNames = [numDialects]string{"raw", "chat", "completions", "responses", "embeddings", "messages"}

// String is the dialect's name, fit for a metric's label value.
func (d Dialect) String() string { return name(dialectNames[:], int(d)) }

// Dialects are all dialects.
func Dialects() []Dialect { return []Dialect{Raw, Chat, Completions, Responses, Embeddings, Messages} }

// RawReason says why a body was read as raw.
type RawReason uint8

// The reasons. Only RawPath comes from a request that is not meant to be JSON.
const (
	// NotRaw: the body was read in its dialect.
	NotRaw RawReason = iota
	// RawPath: the path names no dialect.
	RawPath
	// RawEmpty: there is no body, or nothing but white space.
	RawEmpty
	// RawNotObject: the body does not begin as a JSON object (multipart, UTF-16, an array, text).
	RawNotObject
	// RawSyntax: the JSON breaks off into something else.
	RawSyntax
	// RawTruncated: the body ends inside its JSON object.
	RawTruncated
	// RawTrailing: something follows the JSON object, such as a second one.
	RawTrailing
	// RawEncoding: the body is compressed in a way that is unknown or damaged.
	RawEncoding
	numRawReasons
)

var rawReasonNames = [numRawReasons]string{
	"none", "path", "empty", "not_object", "syntax", "truncated", "trailing", "encoding",
}

// String is the reason's name, fit for a metric's label value.
func (r RawReason) String() string { return name(rawReasonNames[:], int(r)) }

// RawReasons are all reasons but NotRaw.
func RawReasons() []RawReason {
	return []RawReason{RawPath, RawEmpty, RawNotObject, RawSyntax, RawTruncated, RawTrailing, RawEncoding}
}

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

// dialectOf finds the dialect by path suffix; a query does not count.
func dialectOf(path string) Dialect {
	path, _, _ = strings.Cut(path, "?")
	switch {
	case strings.HasSuffix(path, "/v1/chat/completions"):
		return Chat
	case strings.HasSuffix(path, "/v1/completions"):
		return Completions
	case strings.HasSuffix(path, "/v1/responses"):
		return Responses
	case strings.HasSuffix(path, "/v1/embeddings"):
		return Embeddings
	case strings.HasSuffix(path, "/v1/messages"), countsTokens(path):
		return Messages
	}
	return Raw
}

// countsTokens says whether a Messages request to the path is only counted; a query does not count.
func countsTokens(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return strings.HasSuffix(path, "/v1/messages/count_tokens")
}
