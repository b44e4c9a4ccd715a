// Package peerpb is the messages that replicas exchange, generated from peer.proto by `make generate`.
package peerpb
