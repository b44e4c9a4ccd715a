package env

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports are drawn from below the ephemeral ranges of Linux and macOS, so that no outgoing connection takes
// one between its draw and its use.
const firstPort, lastPort = 10000, 32000

var drawn struct {
	sync.Mutex
	ports map[int]bool
}

// FreePort is a TCP port that nothing listened on a moment ago, on any address, and that this program did
// not draw before.
func FreePort() (int, error) {
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
		_ = l.Close()
		drawn.ports[port] = true
		return port, nil
	}
	return 0, errors.New("no free port in 1000 draws")
}

// FreePorts is n different free ports.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			return nil, err
		}
	}
	return ports, nil
}
