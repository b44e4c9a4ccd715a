package peer

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/peer/peerpb"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
)

// BenchmarkReport is what a report of 50 picks, those of 50 ms at 1,000 requests a second, with 30 rungs each and
// counts of 100 endpoints, costs who tells it, whatever the number of listeners, and each who hears it.
func BenchmarkReport(b *testing.B) {
	var sent picker.Report
	for i := range 100 {
		sent.Counts = append(sent.Counts, picker.Count{Endpoint: picker.Tag(2*i + 1), InFlight: 30, Pending: 100000}) //nolint:gosec // small
	}
	for range 50 {
		rungs := make([]prefix.Rung, 30)
		for i := range rungs {
			rungs[i].Key = prefix.Key(rand.Uint64())
		}
		sent.Picks = append(sent.Picks, picker.Told{Endpoint: 7, Rungs: rungs, Bytes: 30000, Uncached: 3000})
	}
	encode := func() []byte {
		m := &peerpb.ListenResponse{Pool: chats.String()}
		put(m, &sent)
		encoded, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		return encoded
	}
	encoded := encode()
	b.Run("tell", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encode()
		}
		b.ReportMetric(float64(len(encoded)), "bytes/report")
	})
	b.Run("hear", func(b *testing.B) {
		k, pool := picker.New(rand.Uint64), endpoint.NewStore().Publish([]endpoint.PoolSpec{{Name: chats}}).Pool(chats)
		var peer picker.Peer
		var taker taker
		b.ReportAllocs()
		for b.Loop() {
			var m peerpb.ListenResponse
			if err := proto.Unmarshal(encoded, &m); err != nil {
				b.Fatal(err)
			}
			r, _ := taker.take(&m)
			k.Hear(pool, &peer, r, 1)
		}
	})
}
