package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/homing-dev/homing/test/env"
)

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
	resp, err := env.Post(ctx, url+"/v1/chat/completions", c)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if c.Stream {
		first, err := env.ReadStream(resp)
		return first.Sub(begun), err
	}
	if err := env.Served(resp); err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return 0, err
}

// probeChat is 8 KiB for a model that no engine has: it is routed like any chat, and refused at once, so
// that little of its time is the engine's.
var probeChat = chat{Model: "absent-" + env.Model, Messages: []message{{"user", strings.Repeat("routing ", 1024)}}, MaxTokens: 1}

// probe sends the probe chat and expects to be refused.
func probe(ctx context.Context, url string) error {
	return env.Probe(ctx, url+"/v1/chat/completions", probeChat)
}
