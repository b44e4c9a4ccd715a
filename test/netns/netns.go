// Package netns gives a test binary a network of its own, for what can't live on loopback: gateways that listen on
// fixed ports, and pods and Services whose addresses the API server must accept.
//
// Invariant: inside there is nothing but lo; every address of [Addresses] is this machine's, and nothing that is sent
// leaves it. Whatever a test fetches or builds, it does before it goes in.
package netns

// Addresses are all local inside, to listen on and to connect to: of the block for benchmarks (RFC 2544), which is
// nobody's, and which Kubernetes takes in EndpointSlices.
const Addresses = "198.18.0.0/16"

// Pods is what to give [github.com/homing-dev/homing/test/cluster.Cluster.RunPods] inside.
const Pods = "198.18.1.1/24"
