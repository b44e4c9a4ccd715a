// Package endpoint holds the immutable view of all pools that picks read.
//
// Invariants: a published [Snapshot], its pools and its endpoints never change; the only thing that
// does is each endpoint's [Load], a set of atomics that belongs to the endpoint's identity and is
// carried from one snapshot to the next. What was counted on a Load is taken back from the same Load,
// whatever has been published in between.
package endpoint

import (
	"net/netip"

	"github.com/zeebo/xxh3"
)

// ID says which endpoint is the same endpoint. An address does not: it may be handed to another pod.
type ID struct {
	// UID is the pod's UID; in standalone mode the name and the address given in the file.
	UID string
	// Port is the model server's port on the pod, 1..65535.
	Port uint16
}

// Spec describes an endpoint to [Store.Publish]. It is comparable: an endpoint whose Spec did not
// change is carried over as it is.
type Spec struct {
	ID ID
	// Name is the pod's name: a label value in metrics, nothing more.
	Name string
	// Addr is where the gateway reaches the model server.
	Addr netip.AddrPort
	// Weight is the endpoint's share of keys against the others of its pool; 0 counts as 1.
	Weight float64
}

// Endpoint is one pod and one target port of a pool, ready to serve.
type Endpoint struct {
	Spec
	// Address is Addr as Envoy reads it: "ip:port", IPv6 in brackets.
	Address string
	// Seed is this endpoint's part of a rendezvous score. All ports of a pod share one seed.
	Seed uint64
	// Load is shared by every snapshot that holds this ID.
	Load *Load
}

func newEndpoint(s Spec, load *Load) *Endpoint {
	return &Endpoint{Spec: s, Address: s.Addr.String(), Seed: xxh3.HashString(s.ID.UID), Load: load}
}
