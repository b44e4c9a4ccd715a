package peer

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/homing-dev/homing/pkg/peer/peerpb"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
)

// What a replica is believed at most. More is a mistake, and must not overflow a sum.
const (
	maxInFlight = 1 << 20
	maxBytes    = 1 << 40 // pending at an endpoint, or of a prompt
	maxTraffic  = 1 << 30 // requests lately
	maxAge      = 86400   // seconds; a place older than that is none
	maxReach    = 1<<16 - 1
)

// put puts a report into a message.
func put(m *peerpb.ListenResponse, r *picker.Report) {
	for _, c := range r.Counts {
		m.Counts = append(m.Counts, &peerpb.Count{
			Endpoint: uint32(c.Endpoint),
			InFlight: uint32(within(c.InFlight, maxInFlight)), //nolint:gosec // bounded
			Pending:  uint64(within(c.Pending, maxBytes)),     //nolint:gosec // bounded
		})
	}
	for _, t := range r.Picks {
		pick := &peerpb.Pick{
			Endpoint: uint32(t.Endpoint), Rungs: make([]uint64, len(t.Rungs)),
			Bytes:    uint64(within(t.Bytes, maxBytes)),    //nolint:gosec // bounded
			Uncached: uint64(within(t.Uncached, maxBytes)), //nolint:gosec // bounded
		}
		for i := range t.Rungs {
			pick.Rungs[i] = uint64(t.Rungs[i].Key)
		}
		m.Picks = append(m.Picks, pick)
	}
}

func within(n, most int64) int64 { return min(max(n, 0), most) }

// clamp is a number of the wire, most if it is more.
func clamp[N uint32 | uint64](n N, most int64) int64 {
	if uint64(n) > uint64(most) { //nolint:gosec // most is positive
		return most
	}
	return int64(n) //nolint:gosec // bounded
}

// taker turns messages into reports, in space that it uses again.
type taker struct {
	report picker.Report
	rungs  []prefix.Rung
}

// take is what a message reports, until the next call: counts beyond reason are cut to their bound, picks that cannot be
// are left out, and invalid is how many of both.
func (t *taker) take(m *peerpb.ListenResponse) (report *picker.Report, invalid int) {
	r := &t.report
	r.Counts, r.Picks, t.rungs = r.Counts[:0], r.Picks[:0], t.rungs[:0]
	for _, c := range m.GetCounts() {
		if c.GetEndpoint() == 0 || c.GetInFlight() > maxInFlight || c.GetPending() > maxBytes {
			invalid++
		}
		r.Counts = append(r.Counts, picker.Count{
			Endpoint: picker.Tag(c.GetEndpoint()),
			InFlight: clamp(c.GetInFlight(), maxInFlight), Pending: clamp(c.GetPending(), maxBytes),
		})
	}
	for _, p := range m.GetPicks() {
		keys := p.GetRungs()
		if p.GetEndpoint() == 0 || len(keys) == 0 || len(keys) > prefix.MaxRungs {
			invalid++
			continue
		}
		from := len(t.rungs)
		for _, key := range keys {
			t.rungs = append(t.rungs, prefix.Rung{Key: prefix.Key(key)})
		}
		bytes := clamp(p.GetBytes(), maxBytes)
		r.Picks = append(r.Picks, picker.Told{
			Endpoint: picker.Tag(p.GetEndpoint()), Rungs: t.rungs[from:len(t.rungs):len(t.rungs)],
			Bytes: bytes, Uncached: min(clamp(p.GetUncached(), maxBytes), bytes),
		})
	}
	return r, invalid
}

// recalled is a part of a memory as a message.
func recalled(traffic float64, rungs []picker.Remembered) *peerpb.RecallResponse {
	m := &peerpb.RecallResponse{Traffic: float32(traffic), Rungs: make([]*peerpb.Rung, len(rungs))}
	for i, r := range rungs {
		rung := &peerpb.Rung{Key: uint64(r.Key), Traffic: float32(r.Traffic), Places: make([]*peerpb.Place, len(r.Places))}
		for j, pl := range r.Places {
			rung.Places[j] = &peerpb.Place{Endpoint: uint32(pl.Endpoint), Age: float32(pl.Age), Reach: uint32(pl.Reach)}
		}
		m.Rungs[i] = rung
	}
	return m
}

// remembered is what a part of a memory says, but for what cannot be.
func remembered(m *peerpb.RecallResponse) (traffic float64, rungs []picker.Remembered) {
	for _, r := range m.GetRungs() {
		rung := picker.Remembered{Key: prefix.Key(r.GetKey()), Traffic: requests(r.GetTraffic())}
		for _, pl := range r.GetPlaces() {
			if age := pl.GetAge(); pl.GetEndpoint() != 0 && age >= 0 && age <= maxAge { // and no NaN
				rung.Places = append(rung.Places, picker.Place{
					Endpoint: picker.Tag(pl.GetEndpoint()), Age: float64(age),
					Reach: uint16(clamp(pl.GetReach(), maxReach)), //nolint:gosec // bounded
				})
			}
		}
		if rung.Places != nil {
			rungs = append(rungs, rung)
		}
	}
	return requests(m.GetTraffic()), rungs
}

func requests(lately float32) float64 {
	if lately >= 0 { // no NaN
		return min(float64(lately), maxTraffic)
	}
	return 0
}

// frame is an encoded message, which many streams may send.
type frame []byte

// codec is gRPC's own, which also takes messages that are encoded.
type codec struct{ encoding.CodecV2 }

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, encoded := v.(frame); encoded {
		return mem.BufferSlice{mem.SliceBuffer(f)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// ServerOptions are those of a gRPC server that [Peers.Register] is called with.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(protocodec.Name)}),
		grpc.MaxRecvMsgSize(1 << 12), // a pool's name
		grpc.MaxConcurrentStreams(maxListeners),
	}
}
