package proc

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports are drawn from below the ephemeral ranges of Linux and macOS, so that no outgoing connection takes one
// between its draw and its use.
const firstPort, lastPort = 10000, 32000

var drawn struct {
	sync.Mutex
	ports map[int]bool
}

// FreePort is a TCP port that nothing listens on, on any address, and that this process did not draw before.
func FreePort(t testing.TB) int {
	t.Helper()
	drawn.Lock()
	defer drawn.Unlock()
	if drawn.ports == nil {
		drawn.ports = map[int]bool{}
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if drawn.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		l.Close()
		drawn.ports[port] = true
		return port
	}
	t.Fatal("no free port in 1000 draws")
	return 0
}
