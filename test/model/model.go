// Package model plays model servers that say who they are, for tests of who serves what, and their clients. A server
// answers at once, in a stream, or when the test says so; what it answers means nothing.
//
// Invariant: a server that is asked to end serves what it has begun, as an engine with a preStop hook does; one that
// crashes or falls silent does not.
package model

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Headers of requests and of their answers.
const (
	// Hold, in a request, has the answer's first event sent at once and its last when [Servers.Open] is called with
	// its value.
	Hold = "x-hold"
	// Events, in a request, is how many events the answer has, ten milliseconds apart; without it, it has a body at once.
	Events = "x-events"
	// ServedBy, in an answer, is the server's name, and Address its ip:port.
	ServedBy = "x-served-by"
	Address  = "x-address"
	// Picked, in an answer, is the request's header that the endpoint picker set.
	Picked = "x-picked"
	// Received, in an answer, is how many bytes the request's body had.
	Received = "x-received"
)

const (
	// First is the first event of an answer in a stream.
	First = "data: first\n\n"
	// Last is its last.
	Last = "data: [DONE]\n\n"
)

const eventStream = "text/event-stream"

// preStop is how long a server that is asked to end goes on accepting requests: longer than gateways and pickers need
// to hear of it.
const preStop = time.Second

// Servers are the model servers of a test.
type Servers struct {
	holds sync.Map // value of the Hold header -> chan struct{}, closed by Open
}

// Open lets go of the answers that are held by this value, and of those to come.
func (s *Servers) Open(hold string) {
	close(s.hold(hold))
}

func (s *Servers) hold(value string) chan struct{} {
	c, _ := s.holds.LoadOrStore(value, make(chan struct{}))
	return c.(chan struct{})
}

// Server is a model server.
type Server struct {
	Name    string
	Address string // ip:port

	servers *Servers
	http    atomic.Pointer[http.Server]
	done    chan struct{}
	ended   sync.Once
	// Requests is how many requests for completions have come, and Left of how many the client left.
	Requests, Left atomic.Int64
}

// Serve starts a server at ip:port.
func (s *Servers) Serve(name, address string) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	m := &Server{Name: name, Address: address, servers: s, done: make(chan struct{})}
	m.start(l)
	return m, nil
}

func (m *Server) start(l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", m.answer)
	server := &http.Server{Handler: mux}
	m.http.Store(server)
	go func() { _ = server.Serve(l) }() // its end is Stop's or Silence's
}

// Again has a server that fell silent serve again.
func (m *Server) Again() error {
	l, err := net.Listen("tcp", m.Address)
	if err != nil {
		return err
	}
	m.start(l)
	return nil
}

// Stop has it end as a pod does that is deleted: it accepts requests for a second more, and serves what it has begun.
func (m *Server) Stop() {
	select {
	case <-m.done:
		return
	case <-time.After(preStop):
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = m.http.Load().Shutdown(ctx)
	m.Crash() // what is left
}

// Crash ends it, and what it serves, at once.
func (m *Server) Crash() {
	m.Silence()
	m.ended.Do(func() { close(m.done) })
}

// Silence has it refuse connections from now on, and drop those it has, without being at its end: what an engine is
// until somebody notices.
func (m *Server) Silence() { _ = m.http.Load().Close() }

// Done is closed when it has ended.
func (m *Server) Done() <-chan struct{} { return m.done }

func (m *Server) answer(w http.ResponseWriter, r *http.Request) {
	m.Requests.Add(1)
	received, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		m.Left.Add(1)
		panic(http.ErrAbortHandler) // the client has gone
	}
	h := w.Header()
	h.Set(ServedBy, m.Name)
	h.Set(Address, m.Address)
	h.Set(Received, strconv.FormatInt(received, 10))
	h.Set(Picked, r.Header.Get("x-gateway-destination-endpoint"))
	hold, events := r.Header.Get(Hold), r.Header.Get(Events)
	if hold == "" && events == "" {
		h.Set("content-type", "application/json")
		_, _ = io.WriteString(w, "{}\n")
		return
	}
	h.Set("content-type", eventStream)
	m.event(w, First)
	if hold != "" {
		m.wait(r, m.servers.hold(hold))
	}
	for n, _ := strconv.Atoi(events); n > 2; n-- {
		time.Sleep(10 * time.Millisecond)
		m.event(w, "data: more\n\n")
	}
	m.event(w, Last)
}

func (m *Server) event(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush() // a client that has gone is seen by wait
}

// wait waits for what is held, or for the client to leave.
func (m *Server) wait(r *http.Request, open <-chan struct{}) {
	select {
	case <-open:
	case <-r.Context().Done():
		m.Left.Add(1)
		panic(http.ErrAbortHandler)
	}
}
