package main

import (
	"crypto/tls"
	"net"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/homing-dev/homing/pkg/controller"
	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/peer"
	"github.com/homing-dev/homing/pkg/server"
)

// newPeers is what this replica tells others and hears from them, nil if they share nothing. With files they are
// those that flags name; a cluster's are told by the controller.
func newPeers(f *flags, store *endpoint.Store, registry prometheus.Registerer, log logr.Logger) *peer.Peers {
	if f.sharePort() == 0 {
		return nil
	}
	options := peer.Options{Store: store, Replicas: f.replicas, Registerer: registry, Log: log}
	if f.secure {
		options.TLS = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // see docs/decisions/peers.md
	}
	peers := peer.New(options)
	if len(f.peers) > 0 {
		others := make([]peer.Other, len(f.peers))
		for i, address := range f.peers {
			others[i] = peer.Other{Address: address, Picks: true}
		}
		peers.Follow(others)
	}
	return peers
}

// peerOptions open the port where other replicas listen to this one.
func peerOptions(f *flags, peers *peer.Peers) server.PeerOptions {
	if peers == nil {
		return server.PeerOptions{}
	}
	return server.PeerOptions{Port: f.sharePort(), Register: peers.Register, Options: peer.ServerOptions()}
}

// followReplicas has the peers be those that the controller finds, nil if nothing is shared.
func followReplicas(f *flags, peers *peer.Peers) func([]controller.Replica) {
	if peers == nil {
		return nil
	}
	return func(replicas []controller.Replica) {
		others := make([]peer.Other, len(replicas))
		for i, r := range replicas {
			others[i] = peer.Other{
				Address: net.JoinHostPort(r.Address.String(), strconv.Itoa(f.peerPort)), Picks: r.Serving,
			}
		}
		peers.Follow(others)
	}
}
