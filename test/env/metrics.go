package env

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics is what a process exposes, by metric name.
type Metrics map[string]*dto.MetricFamily

// Scrape reads metrics in Prometheus's text format.
func Scrape(ctx context.Context, url string) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

// Sum is the sum of a metric's values (of a histogram or summary, its count) over the series that carry
// all the given labels: name, value, name, value... It is 0 where there is no such series.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, series := range m[name].GetMetric() {
		if carries(series, labels) {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetUntyped().GetValue() +
				float64(series.GetHistogram().GetSampleCount()) + float64(series.GetSummary().GetSampleCount())
		}
	}
	return sum
}

func carries(series *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		found := false
		for _, pair := range series.GetLabel() {
			found = found || pair.GetName() == labels[i] && pair.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}
