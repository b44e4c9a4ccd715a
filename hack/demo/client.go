package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/homing-dev/homing/test/env"
)

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

type chat struct {
	Model     string    `json:"model"`
	Messages  []message `json:"messages"`
	MaxTokens int       `json:"max_tokens"`
	Stream    bool      `json:"stream"`
}

// ask sends a chat and reads the answer to its end. Of a stream it returns the time to the first token;
// of an answer in one piece 0, since nobody can tell.
func ask(ctx context.Context, url string, c chat) (time.Duration, error) {
	begun := time.Now()
	resp, err := post(ctx, url, c)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return 0, fmt.Errorf("%s: %s", resp.Status, body)
	}
	if !c.Stream {
		_, err := io.Copy(io.Discard, resp.Body)
		return 0, err
	}
	var first time.Duration
	lines := bufio.NewScanner(resp.Body)
	ended := false
	for lines.Scan() {
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

func post(ctx context.Context, url string, c chat) (*http.Response, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return client.Do(req)
}

// probeChat is 8 KiB for a model that no engine has: it is routed like any chat, and refused at once, so
// that little of its time is the engine's.
var probeChat = chat{Model: "absent-" + env.Model, Messages: []message{{"user", strings.Repeat("routing ", 1024)}}, MaxTokens: 1}

// probe sends the probe chat and expects to be refused.
func probe(ctx context.Context, url string) error {
	resp, err := post(ctx, url, probeChat)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusNotFound {
		err = fmt.Errorf("%s: %.300s", resp.Status, body)
	}
	return err
}
