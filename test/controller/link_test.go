package controller

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// link is a way to the API server that can be cut.
type link struct {
	to, at string

	mu       sync.Mutex
	listener net.Listener      // guarded by mu; nil while the link is cut
	open     map[net.Conn]bool // guarded by mu
}

func newLink(t *testing.T, host string) *link {
	t.Helper()
	u, err := url.Parse(host)
	env.Check(t, err)
	l := &link{to: u.Host, at: "127.0.0.1:0", open: map[net.Conn]bool{}}
	l.mend(t)
	t.Cleanup(l.cut)
	return l
}

func (l *link) address() string { return l.at }

// mend lets connections through again, at the address of before.
func (l *link) mend(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", l.at)
	env.Check(t, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listener, l.at = listener, listener.Addr().String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go l.pass(conn)
		}
	}()
}

func (l *link) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer server.Close()
	l.mu.Lock()
	l.open[client], l.open[server] = true, true
	l.mu.Unlock()
	// Either way ends when the other side, or cut, closes its connection.
	go func() { _, _ = io.Copy(server, client) }()
	_, _ = io.Copy(client, server)
}

// cut ends all connections and refuses new ones.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		l.listener.Close()
		l.listener = nil
	}
	for conn := range l.open {
		conn.Close()
	}
	clear(l.open)
}
