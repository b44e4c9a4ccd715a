package simulate

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
)

//go:embed traces/*.zst
var traces embed.FS

// Mooncake's trace format: a hash id stands for this many tokens, and a bucket of timestamps is this wide.
const (
	mooncakeBlock  = 512
	mooncakeBucket = 3 * time.Second
)

// ErrTrace says that a file is not a trace.
var ErrTrace = errors.New("not a trace")

type mooncakeLine struct {
	Timestamp    float64  `json:"timestamp"` // ms
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// ReadMooncake reads a trace in Mooncake's format, one JSON object a line. Of each prompt the last block
// counts as text of its own unless it is full, and requests with the same timestamp are spread evenly
// until the next one, over three seconds at most: traces are written in buckets, and a burst that never
// was would be simulated otherwise.
func ReadMooncake(r io.Reader, name string, charsPerToken int) (*Workload, error) {
	w := &Workload{Name: name, About: "a trace in Mooncake's format"}
	dec := json.NewDecoder(r)
	for n := 1; ; n++ {
		var line mooncakeLine
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%w: request %d: %w", ErrTrace, n, err)
		}
		full := line.InputLength / mooncakeBlock
		if line.InputLength < 1 || len(line.HashIDs) < full {
			return nil, fmt.Errorf("%w: request %d: input_length %d and %d hash_ids: want a hash id for every %d tokens", ErrTrace, n, line.InputLength, len(line.HashIDs), mooncakeBlock)
		}
		spans := make([]Span, 0, full+1)
		for _, id := range line.HashIDs[:full] {
			spans = append(spans, Span{ID: id, Tokens: mooncakeBlock})
		}
		own := uint64(n) | 1<<63 // text that no other prompt has
		if rest := line.InputLength % mooncakeBlock; rest > 0 {
			spans = append(spans, Span{ID: own, Tokens: rest})
		}
		req := NewRequest(spans, own, line.OutputLength, charsPerToken)
		req.Group = group(line.HashIDs)
		start := time.Duration(line.Timestamp * float64(time.Millisecond))
		w.Sessions = append(w.Sessions, Session{Start: start, Turns: []Turn{{Request: req}}})
	}
	if len(w.Sessions) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrTrace)
	}
	if err := spread(w.Sessions); err != nil {
		return nil, err
	}
	return w, nil
}

// group is what a request of a trace belongs to, as far as a trace tells: the second block, since the
// first is most often a system prompt that all share.
func group(ids []uint64) uint64 {
	if len(ids) == 0 {
		return 0
	}
	return ids[min(1, len(ids)-1)]
}

// spread moves sessions that start at the same time apart, evenly.
func spread(sessions []Session) error {
	for i := 0; i < len(sessions); {
		j := i
		for j < len(sessions) && sessions[j].Start == sessions[i].Start {
			j++
		}
		width := mooncakeBucket
		if j < len(sessions) {
			width = min(width, sessions[j].Start-sessions[i].Start)
		}
		if width < 0 {
			return fmt.Errorf("%w: request %d: its timestamp is before the one above it", ErrTrace, j+1)
		}
		start := sessions[i].Start
		for k := i; k < j; k++ {
			sessions[k].Start = start + width*time.Duration(k-i)/time.Duration(j-i)
		}
		i = j
	}
	return nil
}

// builtinTrace reads a trace that comes with the program.
func builtinTrace(file, name string, charsPerToken int) (*Workload, error) {
	packed, err := traces.ReadFile("traces/" + file)
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	return ReadMooncake(dec, name, charsPerToken)
}

// Part is a part of a workload by time.
type Part string

// The parts: settings are tuned on the first half, and the second is reported.
const (
	All    Part = "all"
	First  Part = "first"
	Second Part = "second"
)

// Take is the part of the workload's sessions, by start in an open loop and by number in a closed one.
// Those of the second half start as much earlier as the first half took.
func (w *Workload) Take(p Part) *Workload {
	n := len(w.Sessions)
	if p == All || n == 0 {
		return w
	}
	part := *w
	half := n / 2
	if w.Clients == 0 {
		middle := (w.Sessions[0].Start + w.Sessions[n-1].Start) / 2
		half = 0
		for half < n && w.Sessions[half].Start < middle {
			half++
		}
	}
	if p == First {
		part.Sessions = w.Sessions[:half]
		return &part
	}
	part.Sessions = nil
	for _, s := range w.Sessions[half:] {
		s.Start -= w.Sessions[half].Start
		part.Sessions = append(part.Sessions, s)
	}
	return &part
}

// Faster is the workload with its open-loop times divided by rate.
func (w *Workload) Faster(rate float64) *Workload {
	fast := *w
	fast.Sessions = nil
	for _, s := range w.Sessions {
		s.Start = time.Duration(float64(s.Start) / rate)
		fast.Sessions = append(fast.Sessions, s)
	}
	return &fast
}
