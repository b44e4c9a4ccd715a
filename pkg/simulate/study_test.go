package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func newStudy(t *testing.T, names ...string) *Study {
	t.Helper()
	strategies, err := FindStrategies(names)
	if err != nil {
		t.Fatal(err)
	}
	return &Study{
		Workload:   func(seed uint64) (*Workload, error) { return mixed(seed), nil },
		Strategies: strategies, PrefixLengths: []int{1024, 4096}, Thresholds: []int{2, 64},
		Hardware: Llama70B, Engines: 4, Replicas: 1, Seeds: []uint64{1, 2, 3},
	}
}

func TestStudyRunsEachSettingOnlyWhereItMatters(t *testing.T) {
	outcomes, err := newStudy(t, "Random", "PrefixAware", "BoundedHash", "OracleWork").Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range outcomes {
		names = append(names, o.Variant.String())
		if len(o.PerSeed) != 3 {
			t.Errorf("%v: %d seeds, want 3", o.Variant, len(o.PerSeed))
		}
		if o.Oracle != (o.Strategy == "OracleWork") {
			t.Errorf("%v: oracle %t", o.Variant, o.Oracle)
		}
	}
	want := "Random PrefixAware(1024,2) PrefixAware(1024,64) PrefixAware(4096,2) PrefixAware(4096,64) BoundedHash(1024) BoundedHash(4096) OracleWork"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("variants %s, want %s", got, want)
	}
}

func TestMeanAndInterval(t *testing.T) {
	m, half := meanAndInterval([]float64{1, 2, 3, 4})
	if want := 3.182 * math.Sqrt(5./3/4); m != 2.5 || math.Abs(half-want) > 1e-9 {
		t.Errorf("%v ± %v, want 2.5 ± %v", m, half, want)
	}
	if m, half := meanAndInterval([]float64{7}); m != 7 || half != 0 {
		t.Errorf("of one: %v ± %v", m, half)
	}
}

func TestFieldsAreAllMetrics(t *testing.T) {
	var m Metrics
	if got, want := len(m.fields()), reflect.TypeFor[Metrics]().NumField(); got != want {
		t.Errorf("fields has %d of %d metrics", got, want)
	}
}

func TestReports(t *testing.T) {
	s := newStudy(t, "Random", "PrefixAware", "OracleWork")
	s.Events = []Event{{At: 5 * time.Second, Kind: Add}}
	runs := 0
	s.Progress = func(p Progress) {
		runs = max(runs, p.Run)
		if p.Run < 1 || p.Run > p.Runs || p.Ended > p.Requests {
			t.Errorf("progress %+v", p)
		}
	}
	report, err := s.Report(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if runs != 18 {
		t.Errorf("progress went to run %d, want 18", runs)
	}
	if report.Sensitivity, err = s.Sensitivity(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Run("table", func(t *testing.T) {
		var b strings.Builder
		if err := report.WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"PrefixAware(4096,64)", "5s:add", "cost of attention -20%", "4 engines, 1 picker, open loop", "Lowest mean TTFT"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("there is no %q in the table:\n%s", want, b.String())
			}
		}
	})
	t.Run("json", func(t *testing.T) {
		var b bytes.Buffer
		if err := report.WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		var again Report
		if err := json.Unmarshal(b.Bytes(), &again); err != nil {
			t.Fatal(err)
		}
		if len(again.Outcomes) != 6 || again.Outcomes[0].Mean != report.Outcomes[0].Mean || len(again.Outcomes[1].Events) != 1 {
			t.Errorf("read back: %+v", again)
		}
	})
	t.Run("plot", func(t *testing.T) {
		var b strings.Builder
		if err := report.WritePlot(&b); err != nil {
			t.Fatal(err)
		}
		checkPage(t, b.String(), 3+4)
	})
}

// checkPage looks for charts that are well-formed and lie within their frames, and for links to elsewhere.
func checkPage(t *testing.T, page string, charts int) {
	t.Helper()
	if strings.Contains(page, "http") || strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Error("the page leads elsewhere, or has numbers that are none")
	}
	parts := strings.Split(page, "<svg ")[1:]
	if len(parts) != charts {
		t.Fatalf("%d charts, want %d", len(parts), charts)
	}
	for _, part := range parts {
		body, _, _ := strings.Cut(part, "</svg>")
		d := xml.NewDecoder(strings.NewReader("<svg " + body + "</svg>"))
		lines := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("a chart is not well-formed: %v", err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
				lines++
			}
		}
		if lines == 0 {
			t.Error("a chart has no lines")
		}
	}
}

func TestTicksAreRound(t *testing.T) {
	for hi, want := range map[float64][]float64{1: {0, .2, .4, .6, .8, 1}, 7: {0, 2, 4, 6}, 0.35: {0, .1, .2, .3}, 1200: {0, 200, 400, 600, 800, 1000, 1200}} {
		if got := ticks(hi); !reflect.DeepEqual(got, want) {
			t.Errorf("ticks to %v: %v, want %v", hi, got, want)
		}
	}
	if got, want := logTicks(.03, 2.5), []float64{.05, .1, .2, .5, 1, 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("ticks from .03 to 2.5: %v, want %v", got, want)
	}
}
