package simulate

import "time"

// Workload is what clients send: sessions, which are turns one after the other.
type Workload struct {
	Name string
	// About says in a line what it is.
	About    string
	Sessions []Session
	// Clients is how many turns are under way at a time, in a closed loop: each client sends the next as
	// soon as the answer to the last is there. 0 is an open loop: sessions begin at their Start.
	Clients int
	// Interleave has each client go on with the session that has waited longest, instead of its own.
	Interleave bool
}

// Session is a conversation, or one request alone.
type Session struct {
	// Start is when it begins, in an open loop.
	Start time.Duration
	Turns []Turn
}

// Turn is a request, and how long after the answer to the turn before it is sent.
type Turn struct {
	Request *Request
	After   time.Duration
}

// Requests counts the turns of all sessions.
func (w *Workload) Requests() (n int) {
	for _, s := range w.Sessions {
		n += len(s.Turns)
	}
	return n
}

// session is a Session under way.
type session struct {
	turns []Turn
	next  int
}
