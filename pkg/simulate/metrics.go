package simulate

import (
	"slices"
	"time"
)

// Fate is how a request ended.
type Fate uint8

// The fates of requests.
const (
	Served Fate = iota
	// Refused: the picker found no engine for it.
	Refused
	// Lost: its engine died while it answered.
	Lost
)

// Record is one request that has ended.
type Record struct {
	Sent, Ended time.Duration
	// TTFT is the time to the first token, 0 if none came.
	TTFT                time.Duration
	Fate                Fate
	Engine              int
	Group               uint64
	Prompt, Hit, Output int
}

// Result is what a run gave.
type Result struct {
	// Records are in the order in which requests ended.
	Records []Record
	// Engines are their totals, by index.
	Engines []EngineTotals
	// End is when the last request ended.
	End time.Duration
}

func (s *simulation) result() *Result {
	r := &Result{Records: s.records}
	for _, g := range s.engines {
		r.Engines = append(r.Engines, g.totals)
	}
	for _, rec := range s.records {
		r.End = max(r.End, rec.Ended)
	}
	return r
}

// GoodTTFT is the time to the first token within which an answer counts toward goodput.
const GoodTTFT = 2 * time.Second

// Metrics sum up a run. Times are in seconds.
type Metrics struct {
	MeanTTFT float64 `json:"ttft_mean_seconds"`
	P50TTFT  float64 `json:"ttft_p50_seconds"`
	P90TTFT  float64 `json:"ttft_p90_seconds"`
	P99TTFT  float64 `json:"ttft_p99_seconds"`
	// HitRate is the share of prompt tokens that came from caches, 0..1.
	HitRate float64 `json:"token_hit_rate"`
	// Goodput is the share of requests whose first token came within GoodTTFT, 0..1.
	Goodput float64 `json:"goodput_share"`
	// GoodPerSecond is how many of these there were in a second.
	GoodPerSecond float64 `json:"goodput_requests_per_second"`
	// Throughput is tokens of answers in a second, over all engines.
	Throughput float64 `json:"output_tokens_per_second"`
	// Spread is the greatest over the mean of the engines' requests in flight, over time: 1 is even.
	Spread float64 `json:"load_spread"`
	// Requests were sent; Failed of them were refused or lost.
	Requests    float64 `json:"requests"`
	Failed      float64 `json:"failed"`
	Preemptions float64 `json:"preemptions"`
}

// fields are all metrics, for those who treat them alike.
func (m *Metrics) fields() []*float64 {
	return []*float64{
		&m.MeanTTFT, &m.P50TTFT, &m.P90TTFT, &m.P99TTFT, &m.HitRate, &m.Goodput, &m.GoodPerSecond,
		&m.Throughput, &m.Spread, &m.Requests, &m.Failed, &m.Preemptions,
	}
}

// Metrics sums up the requests that were sent at warmup or later.
func (r *Result) Metrics(warmup time.Duration) Metrics {
	var m Metrics
	var ttft []float64
	var prompt, hit, output, good int
	for _, rec := range r.Records {
		if rec.Sent < warmup {
			continue
		}
		m.Requests++
		output += rec.Output
		if rec.Fate != Served {
			m.Failed++
			continue
		}
		prompt += rec.Prompt
		hit += rec.Hit
		ttft = append(ttft, rec.TTFT.Seconds())
		if rec.TTFT <= GoodTTFT {
			good++
		}
	}
	slices.Sort(ttft)
	m.MeanTTFT, m.P50TTFT, m.P90TTFT, m.P99TTFT = mean(ttft), quantile(ttft, .5), quantile(ttft, .9), quantile(ttft, .99)
	m.HitRate, m.Goodput = ratio(hit, prompt), ratio(good, int(m.Requests))
	if span := (r.End - warmup).Seconds(); span > 0 {
		m.GoodPerSecond, m.Throughput = float64(good)/span, float64(output)/span
	}
	var load []float64
	for _, e := range r.Engines {
		load = append(load, e.InFlight.Seconds())
		m.Preemptions += float64(e.Preemptions)
	}
	if all := mean(load); all > 0 {
		m.Spread = slices.Max(load) / all
	}
	return m
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func mean(v []float64) (sum float64) {
	if len(v) == 0 {
		return 0
	}
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// quantile of sorted values, by linear interpolation.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
