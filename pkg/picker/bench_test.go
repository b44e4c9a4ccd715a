package picker

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/homing-dev/homing/pkg/endpoint"
)

func BenchmarkPick(b *testing.B) {
	for _, strategy := range []endpoint.Strategy{endpoint.Random, endpoint.LeastOutstandingRequests, endpoint.PrefixAware} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%v/endpoints=%d", strategy, n), func(b *testing.B) {
				policy := prefixAware(64)
				policy.Strategy = strategy
				benchPick(b, newPool(policy, specs(n)))
			})
		}
	}
	b.Run("PrefixAware/weighted/endpoints=100", func(b *testing.B) {
		s := specs(100)
		s[0].Weight = 2
		benchPick(b, newPool(prefixAware(64), s))
	})
}

func benchPick(b *testing.B, pool *endpoint.Pool) {
	k := New(rand.Uint64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var p Pick
		req := keyed(rand.Uint64())
		for pb.Next() {
			req.Key++
			if err := k.Pick(pool, req, &p); err != nil {
				b.Error(err)
				return
			}
			p.Release()
		}
	})
}

// BenchmarkPickUnderChurn picks while another goroutine publishes snapshots without pause.
func BenchmarkPickUnderChurn(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			store, s := endpoint.NewStore(), specs(n)
			publish(store, prefixAware(64), s)
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						publish(store, prefixAware(64), s[:n-i%2])
					}
				}
			}()
			k := New(rand.Uint64)
			var p Pick
			req := keyed(rand.Uint64())
			b.ReportAllocs()
			for b.Loop() {
				req.Key++
				if err := k.Pick(store.Snapshot().Pool(poolName), req, &p); err != nil {
					b.Fatal(err)
				}
				p.Release()
			}
			close(stop)
			<-done
		})
	}
}
