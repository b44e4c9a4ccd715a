package simulate

import (
	"time"

	"github.com/homing-dev/homing/pkg/picker"
)

// Flight is one request on its way: what the gateway, the picker and the engine know of it.
type Flight struct {
	*Request
	// Engine is where it was sent, by index; Fallbacks where a gateway would retry, best first.
	Engine    int
	Fallbacks []int
	// Sent is when it reached the gateway.
	Sent time.Duration
	// Hit is how many tokens of the prompt the engine found in its cache.
	Hit int

	// Of the picker.
	replica int
	pick    picker.Pick

	// Of the engine.
	lease    lease
	computed int // tokens whose keys and values are there
	produced int // tokens of the answer
	chunk    int // tokens that the present step computes
	expected int // tokens of prompt still to compute: what it adds to the engine's pending
	admitted bool

	// Of the client.
	first    time.Duration // when the first token came, 0 before
	assigned time.Duration // when it was sent to Engine
	session  *session
}

// target is how many tokens must be computed before the next can be produced.
func (f *Flight) target() int { return f.Prompt + f.produced }

// known is the text that is there before the next token: the prompt, and once it has tokens of an answer,
// that too.
func (f *Flight) known() []span {
	if f.produced > 0 {
		return f.spans
	}
	return f.prompt()
}
