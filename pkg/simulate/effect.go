package simulate

import "time"

// EventEffect is what a change of the engines did to a run.
type EventEffect struct {
	Event string `json:"event"`
	// Moved is the share of the groups seen shortly before and after that went to another engine after;
	// MovedAnyway the same had nothing happened.
	Moved       float64 `json:"groups_moved"`
	MovedAnyway float64 `json:"groups_moved_anyway"`
	// Groups is how many that is of.
	Groups int `json:"groups"`
	// HitWithout is the token hit rate in the window after, had nothing happened, and Depth how much lower it
	// was in the worst tenth of that window. Dip is how long after the event it came back to within 5 % of
	// what it would have been, for good.
	HitWithout float64 `json:"hit_rate_without_event"`
	Depth      float64 `json:"dip_depth"`
	Dip        float64 `json:"dip_seconds"`
}

// effectWindow is what "shortly" means: how much before and after an event is looked at.
const effectWindow = 5 * time.Minute

// effects compares the run with a quiet one, in which no event happened.
func (r *Result) effects(events []Event, quiet *Result) (effects []EventEffect) {
	for _, e := range events {
		effect := EventEffect{Event: e.String()}
		effect.Moved, effect.Groups = r.moved(e.At)
		effect.MovedAnyway, _ = quiet.moved(e.At)
		effect.HitWithout, _ = quiet.hitRate(e.At, e.At+effectWindow)
		const slice = effectWindow / 10
		for at := e.At; at < e.At+effectWindow; at += slice {
			without, _ := quiet.hitRate(at, at+slice)
			with, some := r.hitRate(at, at+slice)
			if some && with < .95*without {
				effect.Depth = max(effect.Depth, without-with)
				effect.Dip = (at + slice - e.At).Seconds()
			}
		}
		effects = append(effects, effect)
	}
	return effects
}

// moved compares where each group went last before a time and first after it.
func (r *Result) moved(at time.Duration) (share float64, groups int) {
	type sight struct {
		at     time.Duration
		engine int
	}
	before, after := map[uint64]sight{}, map[uint64]sight{}
	for _, rec := range r.Records {
		switch {
		case rec.Fate != Served || rec.Sent < at-effectWindow || rec.Sent > at+effectWindow:
		case rec.Sent < at:
			if s, seen := before[rec.Group]; !seen || rec.Sent >= s.at {
				before[rec.Group] = sight{rec.Sent, rec.Engine}
			}
		default:
			if s, seen := after[rec.Group]; !seen || rec.Sent < s.at {
				after[rec.Group] = sight{rec.Sent, rec.Engine}
			}
		}
	}
	moved := 0
	for group, b := range before {
		if a, seen := after[group]; seen {
			groups++
			if a.engine != b.engine {
				moved++
			}
		}
	}
	return ratio(moved, groups), groups
}

// hitRate is the token hit rate of the requests sent in [from, to), and whether there were any.
func (r *Result) hitRate(from, to time.Duration) (rate float64, some bool) {
	var prompt, hit int
	for _, rec := range r.Records {
		if rec.Fate == Served && rec.Sent >= from && rec.Sent < to {
			prompt += rec.Prompt
			hit += rec.Hit
		}
	}
	return ratio(hit, prompt), prompt > 0
}
