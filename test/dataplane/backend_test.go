package dataplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// backend is a model server whose behaviour a test scripts. It speaks HTTP/1.1 and HTTP/2.
type backend struct {
	index    int
	addr     string
	requests atomic.Int64 // whose headers have come
	server   *httptest.Server
}

type backendKey struct{}

// startBackend serves on a free port until the test ends.
func startBackend(t testing.TB, index int, serve http.HandlerFunc) *backend {
	b := &backend{index: index}
	b.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requests.Add(1)
		serve(w, r.WithContext(context.WithValue(r.Context(), backendKey{}, b)))
	}))
	// Go's default of 250 would have Envoy's connections, and what is on them, end over streams too many.
	b.server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100_000}
	b.server.Config.Protocols = &http.Protocols{}
	b.server.Config.Protocols.SetHTTP1(true)
	b.server.Config.Protocols.SetUnencryptedHTTP2(true)
	b.server.Start()
	b.addr = b.server.Listener.Addr().String()
	t.Cleanup(b.close)
	return b
}

// close ends the backend and its connections. The port is closed from then on.
func (b *backend) close() {
	b.server.CloseClientConnections() // Envoy's idle ones, and those of a test that failed
	b.server.Close()
}

// self is the backend that serves a request.
func self(r *http.Request) *backend { return r.Context().Value(backendKey{}).(*backend) }

// receipt is what a backend saw of a request.
type receipt struct {
	Backend string // its address
	Method  string
	Path    string
	Proto   string
	Length  int64 // Content-Length, -1 when there was none
	Bytes   int64
	SHA256  string
	Header  http.Header
	Trailer http.Header
}

// take reads the whole request.
func take(r *http.Request) (receipt, error) {
	hash := sha256.New()
	n, err := io.Copy(hash, r.Body)
	return receipt{
		Backend: self(r).addr, Method: r.Method, Path: r.URL.RequestURI(), Proto: r.Proto, Length: r.ContentLength,
		Bytes: n, SHA256: hex.EncodeToString(hash.Sum(nil)), Header: r.Header, Trailer: r.Trailer,
	}, err
}

// echo answers with the request's receipt.
func echo(w http.ResponseWriter, r *http.Request) {
	got, err := take(r)
	if err != nil {
		panic(http.ErrAbortHandler) // as a server does whose client left
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Served-By", got.Backend) // a HEAD has no body to say it in
	_ = json.NewEncoder(w).Encode(got)         // who left gets no answer
}

// digest is a body's SHA-256 as a receipt spells it.
func digest(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// gate is a backend's behaviour that holds requests: each reports its arrival, and waits for the gate to
// open or for its client to leave.
type gate struct {
	arrived chan *backend
	opened  chan struct{}
	once    sync.Once
}

func newGate() *gate {
	return &gate{arrived: make(chan *backend, 4096), opened: make(chan struct{})}
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// wait reports an arrival and waits. It says whether the gate was opened.
func (g *gate) wait(r *http.Request) bool {
	g.arrived <- self(r)
	select {
	case <-g.opened:
		return true
	case <-r.Context().Done():
		return false
	}
}

// hold answers as echo does, once the gate is open.
func (g *gate) hold(w http.ResponseWriter, r *http.Request) {
	got, err := take(r) // first: a server notices that its client left only once the body is read
	if err != nil || !g.wait(r) {
		panic(http.ErrAbortHandler)
	}
	_ = json.NewEncoder(w).Encode(got)
}

// stream sends a first event at once, and the last when the gate is open.
func (g *gate) stream(w http.ResponseWriter, r *http.Request) {
	firstEvent(w, r)
	if !g.wait(r) {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// firstEvent reads the request and begins a streamed response.
func firstEvent(w http.ResponseWriter, r *http.Request) {
	if _, err := take(r); err != nil {
		panic(http.ErrAbortHandler) // as a server does whose client left
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "data: first\n\n")
	_ = http.NewResponseController(w).Flush()
}

// reset drops the connection under the response.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset, not an end
	}
	_ = conn.Close()
}

// chat is a chat of the given size in bytes, at least 100. Chats with different seeds begin differently.
func chat(seed string, size int) string {
	head := `{"model":"tiny","messages":[{"role":"user","content":"` + seed + ` `
	tail := `"}]}`
	return head + strings.Repeat("a", max(0, size-len(head)-len(tail))) + tail
}

// answer is what a client got.
type answer struct {
	receipt     // of a backend that answered with one
	status  int // 0 when there was no response
	header  http.Header
	trailer http.Header
	body    string // as far as it came
	err     error  // that ended the request or the response
}

// do sends a request and reads the response.
func do(client *http.Client, req *http.Request) (a answer) {
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	body, err := io.ReadAll(resp.Body)
	a.body, a.trailer, a.err = string(body), resp.Trailer, err
	if a.err == nil && a.status == http.StatusOK && strings.HasPrefix(a.body, "{") {
		a.err = json.Unmarshal(body, &a.receipt)
	}
	return a
}

// start sends a request in the background.
func start(client *http.Client, req *http.Request) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- do(client, req) }()
	return answers
}

// send sends a request whose response must come whole, whatever its status.
func send(t testing.TB, client *http.Client, req *http.Request) answer {
	t.Helper()
	a := do(client, req)
	if a.err != nil {
		t.Fatalf("%s %s: status %d: %v", req.Method, req.URL, a.status, a.err)
	}
	return a
}

// request is a POST of JSON. A body that is a *strings.Reader has its length sent ahead.
func request(t testing.TB, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}

// post sends a body.
func post(t testing.TB, client *http.Client, url, body string) answer {
	t.Helper()
	return send(t, client, request(t, url, strings.NewReader(body)))
}

// passed fails the test unless the body reached a backend byte for byte, whose answer this is.
func (a answer) passed(t testing.TB, body string) {
	t.Helper()
	switch {
	case a.status != http.StatusOK || a.err != nil:
		t.Errorf("status %d %q, %v", a.status, a.body, a.err)
	case a.Bytes != int64(len(body)) || a.SHA256 != digest(body):
		t.Errorf("%d bytes came with digest %s, sent were %d with %s", a.Bytes, a.SHA256, len(body), digest(body))
	}
}
