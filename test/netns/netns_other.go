//go:build !linux

package netns

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// Run can't run these tests without Linux's network namespaces, and says so; the short tests run as they are.
func Run(m *testing.M, _ func() error) int {
	flag.Parse()
	if testing.Short() {
		return m.Run()
	}
	fmt.Fprintln(os.Stderr, "netns: these tests need Linux: not run")
	return 0
}
