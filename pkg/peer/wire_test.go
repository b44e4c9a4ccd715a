package peer

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/homing-dev/homing/pkg/peer/peerpb"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
)

func TestReportsComeAsTheyWent(t *testing.T) {
	sent := picker.Report{
		Counts: []picker.Count{{Endpoint: 7, InFlight: 3, Pending: 4000}, {Endpoint: 9, InFlight: -1, Pending: -1}},
		Picks: []picker.Told{
			{Endpoint: 7, Rungs: []prefix.Rung{{Key: math.MaxUint64}, {Key: 2}}, Bytes: 5000, Uncached: 100},
			{Endpoint: 9, Rungs: []prefix.Rung{{Key: 3}}, Bytes: 10},
		},
	}
	var m, come peerpb.ListenResponse
	put(&m, &sent)
	encoded, err := proto.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(encoded, &come); err != nil {
		t.Fatal(err)
	}
	var taker taker
	taker.take(&peerpb.ListenResponse{Picks: []*peerpb.Pick{{Endpoint: 1, Rungs: []uint64{5, 6, 7}}}}) // used before
	got, invalid := taker.take(&come)
	sent.Counts[1] = picker.Count{Endpoint: 9} // nothing is ever negative
	if diff := cmp.Diff(sent.Counts, got.Counts); diff != "" || invalid != 0 {
		t.Errorf("%d invalid; counts: %s", invalid, diff)
	}
	if diff := cmp.Diff(sent.Picks, got.Picks); diff != "" {
		t.Errorf("picks: %s", diff)
	}
}

// The largest report there can be, and the largest part of a memory, fit into a message.
func TestMessagesFit(t *testing.T) {
	var r picker.Report
	for range 10000 {
		r.Counts = append(r.Counts, picker.Count{Endpoint: math.MaxUint32, InFlight: maxInFlight, Pending: maxBytes})
	}
	for range 4096 { // picker's own bound, with 65536 rungs
		rungs := make([]prefix.Rung, 16)
		r.Picks = append(r.Picks, picker.Told{Endpoint: math.MaxUint32, Rungs: rungs, Bytes: maxBytes, Uncached: maxBytes})
	}
	var m peerpb.ListenResponse
	put(&m, &r)
	if got := proto.Size(&m); got > maxMessage/3 {
		t.Errorf("a report has %d bytes", got)
	}
	part := make([]picker.Remembered, maxRecalled)
	for i := range part {
		part[i] = picker.Remembered{Key: math.MaxUint64, Traffic: 1, Places: make([]picker.Place, 4)}
		for j := range part[i].Places {
			part[i].Places[j] = picker.Place{Endpoint: math.MaxUint32, Age: 1, Reach: math.MaxUint16}
		}
	}
	if got := proto.Size(recalled(1, part)); got > 1<<15 {
		t.Errorf("a part of a memory has %d bytes", got)
	}
}

func absurdMessages(tag uint32) []*peerpb.ListenResponse {
	name := chats.String()
	many := make([]uint64, prefix.MaxRungs+1)
	return []*peerpb.ListenResponse{
		{},
		{Pool: "\x00"},
		{Pool: name, Counts: []*peerpb.Count{nil, {}, {Endpoint: 1}}, Picks: []*peerpb.Pick{nil, {}}},
		{Pool: name, Picks: []*peerpb.Pick{{Endpoint: tag, Rungs: many}, {Rungs: []uint64{1}}, {Endpoint: 1, Rungs: []uint64{0}, Uncached: math.MaxUint64}}},
		{Pool: name, Counts: []*peerpb.Count{{Endpoint: tag, InFlight: 3}, {Endpoint: tag, InFlight: math.MaxUint32, Pending: math.MaxUint64}}},
	}
}

func absurdMemory() *peerpb.RecallResponse {
	nan := float32(math.NaN())
	return &peerpb.RecallResponse{Traffic: nan, Rungs: []*peerpb.Rung{
		nil,
		{Key: 1, Traffic: nan, Places: []*peerpb.Place{{Endpoint: 1, Age: nan}, {Endpoint: 2, Age: -1}, {Endpoint: 3, Age: 1e30}, {Age: 1}}},
		{Key: 2, Traffic: float32(math.Inf(1)), Places: []*peerpb.Place{nil, {Endpoint: 4, Age: 1, Reach: math.MaxUint32}}},
		{Key: 3, Traffic: -5, Places: []*peerpb.Place{{Endpoint: 5}}},
	}}
}

func TestMemoriesAreBounded(t *testing.T) {
	traffic, rungs := remembered(absurdMemory())
	want := []picker.Remembered{
		{Key: 2, Traffic: maxTraffic, Places: []picker.Place{{Endpoint: 4, Age: 1, Reach: math.MaxUint16}}},
		{Key: 3, Places: []picker.Place{{Endpoint: 5}}},
	}
	if diff := cmp.Diff(want, rungs); diff != "" || traffic != 0 {
		t.Errorf("traffic %v, rungs %s", traffic, diff)
	}
}

// Whatever bytes come, what they report is within bounds.
func FuzzTake(f *testing.F) {
	for _, m := range absurdMessages(1) {
		encoded, err := proto.Marshal(m)
		if err == nil {
			f.Add(encoded)
		}
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var m peerpb.ListenResponse
		if proto.Unmarshal(encoded, &m) != nil {
			return
		}
		var taker taker
		r, _ := taker.take(&m)
		for _, c := range r.Counts {
			if c.InFlight < 0 || c.InFlight > maxInFlight || c.Pending < 0 || c.Pending > maxBytes {
				t.Errorf("%+v", c)
			}
		}
		for _, p := range r.Picks {
			if n := len(p.Rungs); n == 0 || n > prefix.MaxRungs || p.Uncached < 0 || p.Uncached > p.Bytes || p.Bytes > maxBytes {
				t.Errorf("%+v", p)
			}
		}
	})
}
