package simulate

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// WritePlot writes the report as a page of its own, which needs nothing from elsewhere: curves of TTFT, hit
// rate over time, load by engine, and for a sweep the knife edges.
func (r *Report) WritePlot(w io.Writer) error {
	page := struct {
		*Report
		Charts []template.HTML
		Table  string
	}{Report: r}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		return err
	}
	page.Table = table.String()
	charts := []chart{r.ttftChart(), r.hitChart(), r.loadChart()}
	charts = append(charts, r.sweepCharts()...)
	for _, c := range charts {
		page.Charts = append(page.Charts, template.HTML(c.svg())) //nolint:gosec // texts are escaped in svg
	}
	return pageTemplate.Execute(w, page)
}

var pageTemplate = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>homing simulate: {{.Workload}}</title>
<style>
:root { color-scheme: light dark; --ink: light-dark(#1c2330, #e4e8ef); --soft: light-dark(#66718a, #98a3b8);
  --paper: light-dark(#fff, #161b24); }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem } p { margin: .2rem 0; color: var(--soft) }
pre { overflow-x: auto; font-size: 12px; line-height: 1.45 }
svg { width: 100%; height: auto; margin-top: 1.6rem }
</style>
<h1>{{.Workload}}</h1><p>{{.About}}</p><p>{{.Hardware}}</p><p>{{.Settings}}. Simulated, not measured; curves are of the first seed.</p>
{{range .Charts}}{{.}}{{end}}
<pre>{{.Table}}</pre>
</html>
`))

// ttftChart is the share of requests whose first token came within a time.
func (r *Report) ttftChart() chart {
	c := chart{title: "Time to the first token: share of requests that had it within", x: "seconds", y: "share of requests", logX: true, percentY: true, maxY: 1}
	for _, o := range r.shown() {
		var times []float64
		for _, rec := range o.First.Records {
			if rec.TTFT > 0 {
				times = append(times, rec.TTFT.Seconds())
			}
		}
		slices.Sort(times)
		var points []point
		const steps = 200
		for i := range steps + 1 {
			q := float64(i) / steps
			if len(times) > 0 {
				points = append(points, point{quantile(times, q), q})
			}
		}
		c.series = append(c.series, series{o.Variant.String(), points})
	}
	return c
}

// shown are the outcomes to draw: all, or of many the best setting of each strategy.
func (r *Report) shown() (shown []Outcome) {
	const many = 12
	if len(r.Outcomes) <= many {
		return r.Outcomes
	}
	for _, o := range r.Outcomes {
		i := slices.IndexFunc(shown, func(s Outcome) bool { return s.Strategy == o.Strategy })
		switch {
		case i < 0:
			shown = append(shown, o)
		case o.Mean.MeanTTFT < shown[i].Mean.MeanTTFT:
			shown[i] = o
		}
	}
	return shown
}

// hitChart is the token hit rate over time.
func (r *Report) hitChart() chart {
	c := chart{title: "Share of prompt tokens found in caches, over time", x: "minutes", y: "token hit rate", percentY: true, maxY: 1}
	for _, o := range r.shown() {
		const steps = 60
		width := max(o.First.End/steps, time.Millisecond)
		var points []point
		for i := range time.Duration(steps) {
			if rate, some := o.First.hitRate(i*width, (i+1)*width); some {
				points = append(points, point{((2*i + 1) * width / 2).Minutes(), rate})
			}
		}
		c.series = append(c.series, series{o.Variant.String(), points})
	}
	return c
}

// loadChart is each engine's requests in flight, on average over time, from the most to the least loaded.
func (r *Report) loadChart() chart {
	c := chart{title: "Requests in flight at each engine, from the most loaded to the least", x: "engine, by load", y: "requests in flight, mean over time"}
	for _, o := range r.shown() {
		var load []float64
		for _, e := range o.First.Engines {
			load = append(load, e.InFlight.Seconds()/max(o.First.End.Seconds(), 1e-9))
		}
		slices.SortFunc(load, func(a, b float64) int { return cmp.Compare(b, a) })
		var points []point
		for i, v := range load {
			points = append(points, point{float64(i + 1), v})
		}
		c.series = append(c.series, series{o.Variant.String(), points})
	}
	return c
}

// sweepCharts are hit rate and P90 over each setting that was swept, a line for each strategy and value of
// the other setting.
func (r *Report) sweepCharts() (charts []chart) {
	settings := []struct {
		name  string
		value func(Variant) int
		rest  func(Variant) Variant
	}{
		{"prefixLength, characters", func(v Variant) int { return v.PrefixLength }, func(v Variant) Variant { v.PrefixLength = 0; return v }},
		{"concurrencyThreshold, requests", func(v Variant) int { return v.Threshold }, func(v Variant) Variant { v.Threshold = 0; return v }},
	}
	figures := []struct {
		name    string
		value   func(Metrics) float64
		percent bool
	}{
		{"Token hit rate", func(m Metrics) float64 { return m.HitRate }, true},
		{"P90 of the time to the first token, seconds", func(m Metrics) float64 { return m.P90TTFT }, false},
	}
	for _, s := range settings {
		for _, f := range figures {
			c := chart{title: f.name + ", over " + s.name, x: s.name, y: f.name, logX: true, percentY: f.percent, dots: true}
			if f.percent {
				c.maxY = 1
			}
			swept, lo, hi := false, math.MaxInt, 0
			for _, o := range r.Outcomes {
				if s.value(o.Variant) == 0 {
					continue
				}
				lo, hi = min(lo, s.value(o.Variant)), max(hi, s.value(o.Variant))
				p, name := point{float64(s.value(o.Variant)), f.value(o.Mean)}, s.rest(o.Variant).String()
				i := slices.IndexFunc(c.series, func(x series) bool { return x.name == name })
				if i < 0 {
					c.series = append(c.series, series{name: name})
					i = len(c.series) - 1
				}
				c.series[i].points = append(c.series[i].points, p)
				swept = swept || len(c.series[i].points) > 1
			}
			if !swept {
				continue
			}
			for _, o := range r.Outcomes { // those that have no such setting, for comparison
				if v := f.value(o.Mean); s.value(o.Variant) == 0 {
					c.series = append(c.series, series{o.Variant.String(), []point{{float64(lo), v}, {float64(hi), v}}})
				}
			}
			charts = append(charts, c)
		}
	}
	return charts
}

// SweepSVGs are the charts of a sweep, each an SVG file of its own: of each setting that was swept, hit rate and
// P90 over it.
func (r *Report) SweepSVGs() (files []string) {
	for _, c := range r.sweepCharts() {
		files = append(files, strings.Replace(c.svg(), `<svg `, `<svg xmlns="http://www.w3.org/2000/svg" `, 1))
	}
	return files
}

type point struct{ x, y float64 }

type series struct {
	name   string
	points []point
}

// bounds of all points of a chart.
func (c *chart) bounds() (lo, hi point) {
	lo, hi = point{math.Inf(1), 0}, point{math.Inf(-1), c.maxY}
	for _, s := range c.series {
		for _, p := range s.points {
			lo.x, hi.x = min(lo.x, p.x), max(hi.x, p.x)
			hi.y = max(hi.y, p.y)
		}
	}
	if lo.x > hi.x {
		lo.x, hi.x = 0, 1
	}
	if c.logX {
		lo.x = max(lo.x, 1e-3)
		hi.x = max(hi.x, 2*lo.x)
	} else if lo.x == hi.x {
		hi.x++
	}
	if hi.y == 0 {
		hi.y = 1
	}
	return lo, hi
}

func formatTick(v float64, percent bool) string {
	if percent {
		return fmt.Sprintf("%.0f%%", 100*v)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
