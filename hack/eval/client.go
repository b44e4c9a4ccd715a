package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

type chat struct {
	Model     string    `json:"model"`
	Messages  []message `json:"messages"`
	MaxTokens int       `json:"max_tokens"`
	Stream    bool      `json:"stream"`
	IgnoreEOS bool      `json:"ignore_eos,omitempty"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// stream sends a body, reads the answer's stream to its end, and returns the time to its first token. Engine,
// unless empty, tells a gateway without a picker where to send it.
func stream(ctx context.Context, url string, body []byte, engine string) (first time.Duration, err error) {
	begun := time.Now()
	resp, err := post(ctx, url, body, engine)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return 0, fmt.Errorf("%s: %s", resp.Status, said)
	}
	lines := bufio.NewScanner(resp.Body)
	ended := false
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), `data: {"error"`) {
			return 0, fmt.Errorf("in the stream: %.300s", lines.Text())
		}
		if first == 0 && strings.HasPrefix(lines.Text(), "data:") {
			first = time.Since(begun)
		}
		ended = ended || lines.Text() == "data: [DONE]"
	}
	if !ended {
		return 0, fmt.Errorf("the stream ended early: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
	}
	return first, nil
}

func post(ctx context.Context, url string, body []byte, engine string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if engine != "" {
		req.Header.Set("x-gateway-destination-endpoint", engine)
	}
	return client.Do(req)
}
