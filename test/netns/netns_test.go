package netns_test

import (
	"net"
	"os"
	"testing"

	"github.com/homing-dev/homing/test/netns"
)

func TestMain(m *testing.M) {
	os.Exit(netns.Run(m, func() error { return nil }))
}

func TestOwnNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a network namespace: not in the short tests")
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(interfaces) != 1 || interfaces[0].Flags&net.FlagLoopback == 0 {
		t.Errorf("interfaces %v, want lo alone", interfaces)
	}
	// The same port on several addresses, none of which anyone has configured.
	for _, address := range []string{"198.18.1.2:9002", "198.18.255.254:9002", "127.1.0.2:9002"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if c, err := net.Dial("tcp", "192.0.2.1:80"); err == nil {
		c.Close()
		t.Error("an address outside can be reached")
	}
}
