package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/homing-dev/homing/pkg/simulate"
)

// smallTrace is a workload that takes milliseconds.
const smallTrace = `{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 900, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 3]}
{"timestamp": 1900, "input_length": 2100, "output_length": 5, "hash_ids": [0, 4, 5, 6, 7]}
`

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func runSimulate(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), append([]string{"simulate"}, args...), &out, &errOut)
	return code, out.String(), errOut.String()
}

func TestSimulateATrace(t *testing.T) {
	trace := writeFile(t, "mine.jsonl", smallTrace)
	code, out, progress := runSimulate(t, "--trace", trace, "--engines", "2", "--seeds", "2")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, progress)
	}
	for _, want := range []string{"mine.jsonl", "3 requests", "PrefixAware(4096,64)", "Lowest mean TTFT"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in:\n%s", want, out)
		}
	}
	if want := "run 6 of 6: PrefixAware(4096,64), seed 2"; !strings.Contains(progress, want) {
		t.Errorf("progress does not say %q:\n%s", want, progress)
	}
}

func TestSimulateBodiesAsJSONAndPlot(t *testing.T) {
	bodies := writeFile(t, "bodies.jsonl", `{"model": "m", "messages": [{"role": "user", "content": "hello"}]}`+"\n")
	plot := filepath.Join(t.TempDir(), "plot.html")
	code, out, stderr := runSimulate(t, "--requests", bodies, "--strategies", "PrefixAware",
		"--prefix-lengths", "1024,2048", "--thresholds", "1,64", "--json", "--quiet", "--plot", plot)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var report simulate.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Outcomes) != 4 || report.Outcomes[0].Mean.Requests != 1 {
		t.Errorf("report %+v", report)
	}
	page, err := os.ReadFile(plot)
	if err != nil || !bytes.Contains(page, []byte("</svg>")) {
		t.Errorf("the page has no chart: %v", err)
	}
}

func TestSimulateSaysWhatIsWrong(t *testing.T) {
	trace := writeFile(t, "bad.jsonl", `{"hello": 1}`)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--workload", "nothing"}, "mooncake-conversation"},
		{[]string{"--strategies", "nothing"}, "PrefixAware"},
		{[]string{"--engines", "0"}, "--engines 0: want 1..1000"},
		{[]string{"--prefix-lengths", "100"}, "--prefix-lengths 100: want 1024..65536"},
		{[]string{"--thresholds", "2000"}, "--thresholds 2000: want 1..1024"},
		{[]string{"--rate", "0"}, "--rate 0"},
		{[]string{"--part", "third"}, "want all, first or second"},
		{[]string{"--event", "soon"}, "10m:kill:3"},
		{[]string{"--event", "1m:kill:9"}, "there is no engine 9"},
		{[]string{"--hardware", "abacus"}, "h100x8-llama-70b"},
		{[]string{"--trace", trace}, "bad.jsonl"},
		{[]string{"--trace", "/nowhere/at/all"}, "no such file"},
		{[]string{"--trace", trace, "--requests", trace}, "want one of them"},
	} {
		code, _, stderr := runSimulate(t, append(test.args, "--quiet")...)
		if code != 1 || !strings.Contains(stderr, test.want) {
			t.Errorf("%v: exit code %d, %q; want 1 and %q", test.args, code, stderr, test.want)
		}
	}
}

func TestSimulateHelpNamesAllThereIs(t *testing.T) {
	_, out, _ := runSimulate(t, "--help")
	for _, s := range simulate.Strategies() {
		if !strings.Contains(out, "  "+s.Name+" ") {
			t.Errorf("--help does not name strategy %s", s.Name)
		}
	}
	for _, w := range simulate.Builtins() {
		if !strings.Contains(out, "  "+w.Name+" ") {
			t.Errorf("--help does not name workload %s", w.Name)
		}
	}
}
