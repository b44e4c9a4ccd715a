package picker

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

func adaptivePolicy() endpoint.Policy {
	p := endpoint.DefaultPolicy()
	p.Strategy = endpoint.AdaptivePrefix
	return p
}

// fullLadder is a ladder of as many rungs as there can be; it begins with shared rungs that many prompts have.
func fullLadder(r *rand.Rand, shared []prefix.Rung) []prefix.Rung {
	rungs := append(make([]prefix.Rung, 0, prefix.MaxRungs), shared...)
	for len(rungs) < prefix.MaxRungs {
		rungs = append(rungs, prefix.Rung{Key: prefix.Key(r.Uint64()), Bytes: int32(512 * (len(rungs) + 1))})
	}
	return rungs
}

// BenchmarkPickAdaptive picks for conversations with full ladders, which begin alike, so that the pool is
// narrowed as often as can be; one goroutine, then one for each processor.
func BenchmarkPickAdaptive(b *testing.B) {
	const conversations = 512
	for _, n := range []int{10, 100, 1000} {
		r := rand.New(rand.NewPCG(1, 2))
		shared := fullLadder(r, nil)
		var ladders [conversations][]prefix.Rung
		for i := range ladders {
			ladders[i] = fullLadder(r, shared[:64>>min(i%8, 7)])
		}
		pool := newPool(adaptivePolicy(), specs(n))
		run := func(k *Picker, next func() bool, from int) {
			var p Pick
			for i := from; next(); i++ {
				req := Request{Rungs: ladders[i%conversations], Bytes: 1 << 16, Now: endpoint.Moment(i)}
				if err := k.Pick(pool, &req, &p); err != nil {
					b.Error(err)
					return
				}
				p.Started(req.Now + 1)
				p.Release()
			}
		}
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			run(New(rand.Uint64), b.Loop, 0)
		})
		b.Run(fmt.Sprintf("endpoints=%d/parallel", n), func(b *testing.B) {
			k := New(rand.Uint64)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) { run(k, pb.Next, rand.IntN(conversations)) })
		})
	}
}
