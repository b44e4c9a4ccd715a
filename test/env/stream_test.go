package env

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestReadStreamTellsAWholeAnswer(t *testing.T) {
	for answer, wrong := range map[string]string{
		"data: {\"a\": 1}\n\ndata: [DONE]\n\n":            "",
		"data: {\"a\": 1}\n\n":                            "ended early",
		"data: {\"error\": \"full\"}\n\ndata: [DONE]\n\n": "full",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
		begun := time.Now()
		resp, err := Post(t.Context(), server.URL, map[string]string{})
		if err != nil {
			t.Fatal(err)
		}
		first, err := ReadStream(resp)
		_ = resp.Body.Close()
		server.Close()
		switch {
		case wrong == "" && (err != nil || first.Before(begun)):
			t.Errorf("%q: first token at %v, %v", answer, first, err)
		case wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)):
			t.Errorf("%q: error %v, want one that says %q", answer, err, wrong)
		}
	}
}

func TestPostSendsHeadersAndSaysARefusal(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, r.Header.Get("X-A")+r.Header.Get("Content-Type"), http.StatusTeapot)
	}))
	defer server.Close()
	resp, err := Post(t.Context(), server.URL, 1, "X-A", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := Served(resp); err == nil || !strings.Contains(err.Error(), "bapplication/json") {
		t.Errorf("error %v, want what the answer says", err)
	}
}

func TestProbeWantsToBeRefused(t *testing.T) {
	for status, fine := range map[int]bool{http.StatusNotFound: true, http.StatusOK: false, http.StatusServiceUnavailable: false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		if err := Probe(t.Context(), server.URL, "absent"); (err == nil) != fine {
			t.Errorf("status %d: %v", status, err)
		}
		server.Close()
	}
}
