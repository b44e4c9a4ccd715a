package env

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
)

var poster = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// Post sends a body as JSON. headers are names and values in turn. The caller closes the answer's body.
func Post(ctx context.Context, url string, body any, headers ...string) (*http.Response, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return poster.Do(req)
}

// Served says nil for an answer of status 200, else what the answer says.
func Served(resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // what there is of it
	return fmt.Errorf("%s: %s", resp.Status, said)
}

// Probe sends a request for a model that no engine has: it is routed, and refused at once, which is as it should be.
func Probe(ctx context.Context, url string, body any) error {
	resp, err := Post(ctx, url, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusNotFound {
		err = fmt.Errorf("%s: %.300s", resp.Status, said)
	}
	return err
}

// ReadStream reads a streamed answer to its end, and says when its first token came. An answer that was refused,
// that has an error in its stream or that ends early is an error.
func ReadStream(resp *http.Response) (first time.Time, err error) {
	if err := Served(resp); err != nil {
		return first, err
	}
	lines := bufio.NewScanner(resp.Body)
	ended := false
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), `data: {"error"`) {
			return first, fmt.Errorf("in the stream: %.300s", lines.Text())
		}
		if first.IsZero() && strings.HasPrefix(lines.Text(), "data:") {
			first = time.Now()
		}
		ended = ended || lines.Text() == "data: [DONE]"
	}
	if !ended {
		return first, fmt.Errorf("the stream ended early: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
	}
	return first, nil
}
