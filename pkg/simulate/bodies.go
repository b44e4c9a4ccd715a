package simulate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"github.com/homing-dev/homing/pkg/prefix"
	"github.com/homing-dev/homing/pkg/prompt"
)

// Bodies are cut into pieces of this many tokens, and at each message: where two prompts part is known no
// better than that.
const pieceTokens = 32

// What is assumed of a body that does not say.
const (
	assumedOutput = 250 // tokens, at most max_tokens
	assumedGap    = time.Second
	longestLine   = 64 << 20
)

// bodyLine is a line of a file of bodies: a body as it is, or one in an envelope, such as a line of a file
// for OpenAI's Batch API.
type bodyLine struct {
	Body json.RawMessage `json:"body"`
	URL  string          `json:"url"`
	// Timestamp is in ms; without it one request comes every second.
	Timestamp *float64 `json:"timestamp"`
	Output    int      `json:"output_tokens"`
}

// bodyMembers are members of a body that tell its dialect and the answer's length.
type bodyMembers struct {
	Messages, Input, Prompt json.RawMessage
	System                  json.RawMessage
	MaxTokens               int `json:"max_tokens"`
	MaxCompletionTokens     int `json:"max_completion_tokens"`
	MaxOutputTokens         int `json:"max_output_tokens"`
}

// ReadBodies reads request bodies, one a line: bodies of OpenAI's or Anthropic's API as they are, or in an
// envelope {"body": ..., "url": path, "timestamp": ms, "output_tokens": n}. Only body must be there. Bodies
// are read by the reader that serves, so a prompt's text and its keys are those of production; tools count
// toward a key and not toward a prompt's length, and an answer is not known again in the next question.
func ReadBodies(r io.Reader, name string, charsPerToken int) (*Workload, error) {
	w := &Workload{Name: name, About: "request bodies"}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, longestLine)
	reader := &prompt.Reader{}
	var at time.Duration
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		request, start, err := readBody(reader, lines.Bytes(), charsPerToken)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, n, err)
		}
		if start != nil {
			at = time.Duration(*start * float64(time.Millisecond))
		}
		w.Sessions = append(w.Sessions, Session{Start: at, Turns: []Turn{{Request: request}}})
		if start == nil {
			at += assumedGap
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	if len(w.Sessions) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrTrace)
	}
	if err := spread(w.Sessions); err != nil {
		return nil, err
	}
	return w, nil
}

func readBody(reader *prompt.Reader, line []byte, charsPerToken int) (*Request, *float64, error) {
	var l bodyLine
	if err := json.Unmarshal(line, &l); err != nil {
		return nil, nil, err
	}
	if len(l.Body) == 0 {
		l = bodyLine{Body: line}
	}
	var members bodyMembers
	if err := json.Unmarshal(l.Body, &members); err != nil {
		return nil, nil, fmt.Errorf("body: %w", err)
	}
	if l.URL == "" {
		l.URL = members.path()
	}
	reader.Reset(l.URL, "", prompt.Options{PrefixLength: len(l.Body) + 1, MaxInspectBytes: len(l.Body) + 1})
	reader.Write(l.Body)
	reader.Close()
	p := reader.Prompt()
	if !p.HasText {
		return nil, nil, errors.New("body: there is no prompt in it")
	}
	output := l.Output
	if output <= 0 {
		output = members.output()
	}
	spans := pieces(p, charsPerToken)
	request := NewRequest(spans, xxh3.Hash(l.Body)|1, output, charsPerToken)
	request.Group = uint64(request.Key(4096))
	return request, l.Timestamp, nil
}

// path is that of the API whose body has such members.
func (m *bodyMembers) path() string {
	switch {
	case len(m.Messages) > 0 && len(m.System) > 0:
		return "/v1/messages"
	case len(m.Messages) > 0:
		return "/v1/chat/completions"
	case len(m.Input) > 0:
		return "/v1/responses"
	case len(m.Prompt) > 0:
		return "/v1/completions"
	}
	return "/"
}

func (m *bodyMembers) output() int {
	for _, limit := range []int{m.MaxTokens, m.MaxCompletionTokens, m.MaxOutputTokens} {
		if limit > 0 {
			return min(limit, assumedOutput)
		}
	}
	return assumedOutput
}

// pieces cuts a prompt's routing text. What keeps prompts apart beside their text is in every piece.
func pieces(p prompt.Prompt, charsPerToken int) (spans []Span) {
	scope := uint64(prefix.OfDigest(prefix.Scope{
		Model: p.Model, CacheSalt: p.CacheSalt, Isolation: p.CacheKey, Tools: p.Tools,
	}, 0))
	for at := 0; at < len(p.Text); {
		end := prompt.NextMessage(p.Text, at)
		for message := p.Text[at:end]; len(message) > 0; {
			size, chars := 0, 0
			for size < len(message) && chars < pieceTokens*charsPerToken {
				_, n := utf8.DecodeRune(message[size:])
				size += n
				chars++
			}
			spans = append(spans, Span{
				ID:          mix(scope, xxh3.Hash(message[:size])),
				Tokens:      (chars + charsPerToken - 1) / charsPerToken,
				EndsMessage: size == len(message),
			})
			message = message[size:]
		}
		at = end
	}
	return spans
}
