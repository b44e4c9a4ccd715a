package simulate

import "time"

// EventEffect is what a change of the engines did to a run.
type EventEffect struct {
	Event string `json:"event"`
	// Moved is the share of the groups seen shortly before and after that went to another engine after;
	// MovedAnyway the same share at a time just before, when nothing changed.
	Moved       float64 `json:"groups_moved"`
	MovedAnyway float64 `json:"groups_moved_anyway"`
	// Groups is how many that is of.
	Groups int `json:"groups"`
	// HitBefore is the token hit rate in the window before; HitLowest that of the worst tenth of a window
	// after, and Dip how long after the event it stayed below 95 % of HitBefore.
	HitBefore float64 `json:"hit_rate_before"`
	HitLowest float64 `json:"hit_rate_lowest"`
	Dip       float64 `json:"dip_seconds"`
}

// effectWindow is what "shortly" means: how much before and after an event is looked at.
const effectWindow = 5 * time.Minute

func (r *Result) effects(events []Event) (effects []EventEffect) {
	for _, e := range events {
		effect := EventEffect{Event: e.String()}
		effect.Moved, effect.Groups = r.moved(e.At)
		effect.MovedAnyway, _ = r.moved(e.At - effectWindow)
		effect.HitBefore = r.hitRate(e.At-effectWindow, e.At)
		effect.HitLowest = effect.HitBefore
		const slice = effectWindow / 10
		for at := e.At; at < r.End; at += slice {
			rate := r.hitRate(at, at+slice)
			if at < e.At+effectWindow {
				effect.HitLowest = min(effect.HitLowest, rate)
			}
			if rate >= .95*effect.HitBefore {
				effect.Dip = (at - e.At).Seconds()
				break
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

// hitRate is the token hit rate of the requests sent in [from, to).
func (r *Result) hitRate(from, to time.Duration) float64 {
	var prompt, hit int
	for _, rec := range r.Records {
		if rec.Fate == Served && rec.Sent >= from && rec.Sent < to {
			prompt += rec.Prompt
			hit += rec.Hit
		}
	}
	return ratio(hit, prompt)
}
