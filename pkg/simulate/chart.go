package simulate

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// chart is lines over two axes.
type chart struct {
	title, x, y    string
	logX, percentY bool
	maxY           float64 // 0: as the points have it
	dots           bool    // mark the points
	series         []series
}

// The frame of a chart, in SVG units. The legend is below it, two to a row.
const (
	chartWidth, chartHeight = 900., 380.
	frameLeft, frameRight   = 64., 884.
	frameTop, frameBottom   = 44., 330.
	legendRow               = 20.
)

// Colours that stay apart for most kinds of colour blindness, on light and on dark; after them dashes.
var (
	colours = []string{"#4477aa", "#ee6677", "#228833", "#ccaa22", "#44bbdd", "#aa3377", "#e07b39", "#8d8d8d"}
	dashes  = []string{"", "7 4", "2 4", "10 3 2 3"}
)

// chartStyle is in each chart, so that it can be a file of its own.
const chartStyle = `<style>
svg { color-scheme: light dark } text { fill: light-dark(#1c2330, #e4e8ef); font: 12px system-ui, sans-serif }
.title { font-size: 15px; font-weight: 600 } .soft { fill: light-dark(#66718a, #98a3b8) } .grid { stroke: light-dark(#e3e7ee, #2d3542) }
.line { fill: none; stroke-width: 2; stroke-linejoin: round } g.s:hover .line { stroke-width: 4 }
</style>`

func (c *chart) svg() string {
	lo, hi := c.bounds()
	var b strings.Builder
	height := chartHeight + legendRow*math.Ceil(float64(len(c.series))/2)
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartWidth, height, html.EscapeString(c.title))
	b.WriteString(chartStyle)
	fmt.Fprintf(&b, `<text class="title" x="%g" y="24">%s</text>`, frameLeft, html.EscapeString(c.title))
	c.axes(&b, lo, hi)
	for i, s := range c.series {
		c.line(&b, i, s, lo, hi)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *chart) place(p, lo, hi point) (x, y float64) {
	share := (p.x - lo.x) / (hi.x - lo.x)
	if c.logX {
		share = math.Log(max(p.x, lo.x)/lo.x) / math.Log(hi.x/lo.x)
	}
	return frameLeft + share*(frameRight-frameLeft), frameBottom - p.y/hi.y*(frameBottom-frameTop)
}

func (c *chart) axes(b *strings.Builder, lo, hi point) {
	for _, v := range ticks(hi.y) {
		_, y := c.place(point{lo.x, v}, lo, hi)
		fmt.Fprintf(b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="soft" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			frameLeft, frameRight, y, y, frameLeft-6, y+4, formatTick(v, c.percentY))
	}
	marks := ticks(hi.x)
	switch {
	case c.dots:
		marks = c.xs()
	case c.logX:
		marks = logTicks(lo.x, hi.x)
	}
	for _, v := range marks {
		if v < lo.x || v > hi.x {
			continue
		}
		x, _ := c.place(point{v, 0}, lo, hi)
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text class="soft" x="%.1f" y="%g" text-anchor="middle">%s</text>`,
			x, x, frameTop, frameBottom, x, frameBottom+16, formatTick(v, false))
	}
	fmt.Fprintf(b, `<text class="soft" x="%g" y="%g" text-anchor="end">%s</text>`, frameRight, frameBottom+34, html.EscapeString(c.x))
}

func (c *chart) line(b *strings.Builder, i int, s series, lo, hi point) {
	colour, dash := colours[i%len(colours)], dashes[i/len(colours)%len(dashes)]
	name := html.EscapeString(s.name)
	fmt.Fprintf(b, `<g class="s"><title>%s</title><polyline class="line" stroke="%s" stroke-dasharray="%s" points="`, name, colour, dash)
	for _, p := range s.points {
		x, y := c.place(p, lo, hi)
		fmt.Fprintf(b, "%.1f,%.1f ", x, y)
	}
	b.WriteString(`"/>`)
	for _, p := range s.points {
		if x, y := c.place(p, lo, hi); c.dots {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%s: %s at %s</title></circle>`,
				x, y, colour, name, formatTick(math.Round(p.y*1e4)/1e4, c.percentY), formatTick(p.x, false))
		}
	}
	x, y := frameLeft+float64(i%2)*(frameRight-frameLeft)/2, chartHeight+legendRow*float64(i/2)+8
	fmt.Fprintf(b, `<line class="line" stroke="%s" stroke-dasharray="%s" x1="%g" x2="%g" y1="%g" y2="%g"/><text x="%g" y="%g">%s</text></g>`,
		colour, dash, x, x+28, y-4, y-4, x+36, y, name)
}

// xs are the points' own places on the x axis.
func (c *chart) xs() (at []float64) {
	for _, s := range c.series {
		for _, p := range s.points {
			at = append(at, p.x)
		}
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// ticks are about five round numbers from 0 to hi.
func ticks(hi float64) (at []float64) {
	step := math.Pow(10, math.Floor(math.Log10(hi/2)))
	for _, f := range []float64{1, 2, 5, 10} {
		if hi/(f*step) <= 6 {
			step *= f
			break
		}
	}
	for i := 0.; i*step <= hi*1.0001; i++ {
		at = append(at, math.Round(i*step*1e9)/1e9)
	}
	return at
}

// logTicks are 1, 2 and 5 times powers of ten.
func logTicks(lo, hi float64) (at []float64) {
	for v := math.Pow(10, math.Floor(math.Log10(lo))); v <= hi; v *= 10 {
		for _, f := range []float64{1, 2, 5} {
			if tick := math.Round(v*f*1e9) / 1e9; tick >= lo && tick <= hi {
				at = append(at, tick)
			}
		}
	}
	return at
}
