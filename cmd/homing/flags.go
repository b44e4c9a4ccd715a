package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prompt"
	"github.com/homing-dev/homing/pkg/server"
)

// flags are those of `homing serve`.
type flags struct {
	standalone string
	cluster    clusterFlags
	address    string
	verbosity  int

	healthPort, metricsPort int
	pprof                   bool
	secure                  bool
	certPath                string
	drain                   server.DrainOptions

	maxInspectBytes int
	replicas        int
	peerPort        int
	peers           []string
	defaults        endpoint.Policy
}

func (f *flags) register(set *pflag.FlagSet) {
	set.StringVar(&f.standalone, "standalone", "", "read pools, policies and endpoints from the *.yaml and *.yml files of this `directory` and follow their changes, instead of from Kubernetes")
	f.cluster.register(set)
	set.StringVar(&f.address, "bind-address", "", "the IP `address` to listen on (default: all addresses)")
	set.IntVar(&f.healthPort, "grpc-health-port", 9003, "the `port` of the gRPC health service; 0 takes a free one")
	set.IntVar(&f.metricsPort, "metrics-port", 9090, "the `port` of /metrics, /healthz and /readyz; 0 takes a free one")
	set.BoolVar(&f.pprof, "pprof", false, "serve /debug/pprof/ on the metrics port")
	set.BoolVar(&f.secure, "secure-serving", true, "speak TLS to gateways; false for those that want plaintext, as Istio and Envoy Gateway do by default")
	set.StringVar(&f.certPath, "cert-path", "", "the `directory` of tls.crt and tls.key, followed as they are renewed (default: a self-signed certificate made at start)")
	set.DurationVar(&f.drain.Delay, "drain-delay", 5*time.Second, "how long to go on after SIGTERM with health saying NOT_SERVING, for gateways to take note")
	set.DurationVar(&f.drain.Timeout, "drain-timeout", 10*time.Minute, "how long to wait then for responses that pass through, also those of a pool that was removed, before they are cut")
	set.IntVar(&f.maxInspectBytes, "max-inspect-bytes", prompt.DefaultMaxInspectBytes, "how many `bytes` of a JSON body to read at most for members that follow the text, 1024..67108864")
	set.IntVar(&f.replicas, "replicas", 1, "how many `replicas` of homing pick for the same pools, this one among them, 1..100: AdaptivePrefix allows for what it does not hear of. Where the others are found, those count instead")
	set.IntVar(&f.peerPort, "peer-port", 9004, "the `port` where replicas tell each other their load and placements, the same for all of them; 0 tells nothing")
	set.StringArrayVar(&f.peers, "peer", nil, "the `host:port` where another replica's --peer-port is reached, with --standalone; once for each of them. In a cluster they are found by the Service")
	f.defaults = endpoint.DefaultPolicy()
	set.IntVar(&f.defaults.PrefixLength, "default-prefix-length", f.defaults.PrefixLength, "how many `characters` of a prompt make its key in pools that do not say, 1024..65536")
	set.IntVar(&f.defaults.ConcurrencyThreshold, "default-concurrency-threshold", f.defaults.ConcurrencyThreshold, "how many `requests` may be in flight at an endpoint before it is passed over, in pools that do not say, 1..1024")
	set.IntVarP(&f.verbosity, "verbosity", "v", 0, "the log `level`: 0, or 1 for a line per request")
}

// check says what is wrong with the flags, and what to do about it.
func (f *flags) check() error {
	if err := f.checkSource(); err != nil {
		return err
	}
	if f.certPath != "" {
		if !f.secure {
			return fmt.Errorf("--cert-path %s has no effect with --secure-serving=false: drop one of them", f.certPath)
		}
		for _, name := range []string{"tls.crt", "tls.key"} {
			if _, err := os.Stat(filepath.Join(f.certPath, name)); err != nil {
				return fmt.Errorf("--cert-path: %w; the directory must hold tls.crt and tls.key", err)
			}
		}
	}
	if _, err := netip.ParseAddr(f.address); f.address != "" && err != nil {
		return fmt.Errorf("--bind-address %q: want an IP address, as 127.0.0.1 or ::1", f.address)
	}
	for _, r := range []struct {
		flag            string
		value, min, max int
	}{
		{"--grpc-health-port", f.healthPort, 0, 65535},
		{"--metrics-port", f.metricsPort, 0, 65535},
		{"--max-inspect-bytes", f.maxInspectBytes, 1 << 10, 64 << 20},
		{"--default-prefix-length", f.defaults.PrefixLength, endpoint.MinPrefixLength, endpoint.MaxPrefixLength},
		{"--default-concurrency-threshold", f.defaults.ConcurrencyThreshold, endpoint.MinConcurrencyThreshold, endpoint.MaxConcurrencyThreshold},
		{"--replicas", f.replicas, 1, 100},
		{"--peer-port", f.peerPort, 0, 65535},
		{"--verbosity", f.verbosity, 0, 10},
	} {
		if r.value < r.min || r.value > r.max {
			return fmt.Errorf("%s %d: want %d..%d", r.flag, r.value, r.min, r.max)
		}
	}
	if err := f.checkPorts(); err != nil {
		return err
	}
	for flag, d := range map[string]time.Duration{"--drain-delay": f.drain.Delay, "--drain-timeout": f.drain.Timeout} {
		if d < 0 {
			return fmt.Errorf("%s %s: want 0s or more", flag, d)
		}
	}
	return nil
}

// checkPorts says which of Homing's own ports are the same, and what is wrong with other replicas' addresses.
func (f *flags) checkPorts() error {
	owner := map[int]string{}
	for _, own := range []struct {
		flag string
		port int
	}{{"--grpc-health-port", f.healthPort}, {"--metrics-port", f.metricsPort}, {"--peer-port", f.sharePort()}} {
		if first := owner[own.port]; first != "" && own.port != 0 {
			return fmt.Errorf("%s and %s are both %d: give them different ports", first, own.flag, own.port)
		}
		owner[own.port] = own.flag
	}
	if len(f.peers) > 0 && f.standalone == "" {
		return errors.New("--peer is for --standalone: in a cluster other replicas are found by the Service")
	}
	if len(f.peers) > 0 && f.peerPort == 0 {
		return errors.New("--peer has no effect with --peer-port 0: drop one of them")
	}
	for _, p := range f.peers {
		host, port, err := net.SplitHostPort(p)
		if n, wrong := strconv.ParseUint(port, 10, 16); err != nil || host == "" || wrong != nil || n == 0 {
			return fmt.Errorf("--peer %q: want host:port, as 10.0.0.2:9004 or [::1]:9004", p)
		}
	}
	return nil
}

// sharePort is the port where other replicas listen to this one, 0 if there are none to be expected: with files, only
// those that are named.
func (f *flags) sharePort() int {
	if f.standalone != "" && len(f.peers) == 0 {
		return 0
	}
	return f.peerPort
}

// checkSource says what is wrong with where the pools come from.
func (f *flags) checkSource() error {
	if f.standalone == "" {
		return f.cluster.check()
	}
	return isDir("--standalone", f.standalone)
}

func isDir(flag, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s %s: not a directory", flag, path)
	}
	return nil
}

// refusePort says why no pool may have the port, "" if one may.
func (f *flags) refusePort(port uint16) string {
	switch int(port) {
	case f.healthPort:
		return "is Homing's own, for health (--grpc-health-port)"
	case f.metricsPort:
		return "is Homing's own, for metrics (--metrics-port)"
	case f.sharePort():
		return "is Homing's own, for peers (--peer-port)"
	}
	if open := f.cluster.ports; f.standalone == "" && len(open) > 0 && !open.contain(int(port)) {
		return fmt.Sprintf("is none of the Service's, %s (--pool-ports), so gateways do not reach it", open.String())
	}
	return ""
}

// portRanges are ports of pools: a flag's value, as 9002,9100-9131.
type portRanges []portRange

type portRange struct{ first, last int }

func (r *portRanges) String() string {
	var list []string
	for _, p := range *r {
		if p.first == p.last {
			list = append(list, strconv.Itoa(p.first))
		} else {
			list = append(list, fmt.Sprintf("%d-%d", p.first, p.last))
		}
	}
	return strings.Join(list, ",")
}

// Set implements [pflag.Value].
func (r *portRanges) Set(value string) error {
	for item := range strings.SplitSeq(value, ",") {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err != nil || err2 != nil || first == 0 || last < first {
			return fmt.Errorf("%q: want ports and ranges of ports, as 9002,9100-9131", item)
		}
		*r = append(*r, portRange{int(first), int(last)}) //nolint:gosec // at most 65535
	}
	return nil
}

// Type implements [pflag.Value].
func (r *portRanges) Type() string { return "ports" }

func (r portRanges) contain(port int) bool {
	return slices.ContainsFunc(r, func(p portRange) bool { return p.first <= port && port <= p.last })
}
