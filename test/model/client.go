package model

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Client asks for completions, by way of a gateway.
type Client struct {
	URL  string // http://ip:port
	Host string // the Host header, empty for that of the URL
	http *http.Client
}

// NewClient is a client whose requests take no longer than a minute.
func NewClient(t testing.TB, url, host string) *Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &Client{URL: url, Host: host, http: &http.Client{Transport: transport, Timeout: time.Minute}}
}

// Reconnect has the requests to come use connections of their own.
func (c *Client) Reconnect() { c.http.CloseIdleConnections() }

// Answer is what a client got.
type Answer struct {
	Status int // 0 when there was no response
	Header http.Header
	Body   string // as far as it came
	Err    error  // that ended the request or the response
}

// Failure describes an answer that is not a good one; it is empty for a good one.
func (a Answer) Failure() string {
	switch {
	case a.Err != nil:
		return fmt.Sprintf("status %d: %v", a.Status, a.Err)
	case a.Status != http.StatusOK:
		return fmt.Sprintf("status %d: %s", a.Status, a.Body)
	case a.Header.Get("content-type") == eventStream && a.Header.Get(ServedBy) != "" && !strings.HasSuffix(a.Body, Last):
		return "cut short: " + a.Body
	default:
		return ""
	}
}

// ServedBy is the name of the server that answered.
func (a Answer) ServedBy() string { return a.Header.Get(ServedBy) }

// Ask sends a chat and reads the answer to its end. headers are names and values in turn.
func (c *Client) Ask(ctx context.Context, prompt string, headers ...string) Answer {
	resp, err := c.Begin(ctx, prompt, headers...)
	if err != nil {
		return Answer{Err: err}
	}
	return End(resp)
}

// End reads an answer that has begun to its end.
func End(resp *http.Response) Answer {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: err}
}

// Begin sends a chat and gives the answer once its headers have come.
func (c *Client) Begin(ctx context.Context, prompt string, headers ...string) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{"model": "tiny", "max_tokens": 4,
		"messages": []any{map[string]any{"role": "user", "content": prompt}}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	req.Host = c.Host
	req.Header.Set("content-type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return c.http.Do(req)
}

// Get sends a request without a body.
func (c *Client) Get(ctx context.Context, path string) Answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		return Answer{Err: err}
	}
	req.Host = c.Host
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{Err: err}
	}
	return End(resp)
}

// AskAll asks for each prompt, six at a time, and says who served it.
func (c *Client) AskAll(ctx context.Context, prompts []string) (map[string]string, error) {
	next := make(chan string)
	var mu sync.Mutex // guards the two below
	served, failed := make(map[string]string, len(prompts)), error(nil)
	var asking sync.WaitGroup
	for range 6 {
		asking.Go(func() {
			for prompt := range next {
				a := c.Ask(ctx, prompt)
				mu.Lock()
				if why := a.Failure(); why != "" {
					failed = fmt.Errorf("%.30s: %s", prompt, why)
				} else {
					served[prompt] = a.ServedBy()
				}
				mu.Unlock()
			}
		})
	}
	for _, prompt := range prompts {
		next <- prompt
	}
	close(next)
	asking.Wait()
	return served, failed
}

// Distinct are the values of a map, each once, in order.
func Distinct(m map[string]string) []string {
	var values []string
	for _, v := range m {
		values = append(values, v)
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// Filler is a text of n characters.
func Filler(n int) string { return strings.Repeat(" all happy families are alike", n/29+1)[:n] }
