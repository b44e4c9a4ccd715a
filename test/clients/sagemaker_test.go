package clients

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// invocation is what sagemaker/main.go prints of a call.
type invocation struct {
	Call, ID, Sent, Received string
	Parts                    int
}

// TestSageMakerClients has the AWS SDK invoke an endpoint, whole and streamed, by Homing instead of AWS. The
// same body has one home for each PrefixAwareId.
func TestSageMakerClients(t *testing.T) {
	var endpoints []string
	for range 4 {
		server := httptest.NewServer(http.HandlerFunc(sageMaker))
		t.Cleanup(server.Close)
		endpoints = append(endpoints, server.Listener.Addr().String())
	}
	g := newGateway(t, endpoints, env.Policy{PrefixLength: prefixLength})
	calls := run[invocation](t, buildSageMaker(t), g.envoy.URL)
	homes := homes{}
	for i, served := range g.served(len(calls)) {
		call := calls[i]
		path := "/endpoints/llama/invocations"
		want := answer(path, call.ID, call.Sent)
		if call.Call == "InvokeEndpointWithResponseStream" {
			path += "-response-stream"
			want = answer(path, call.ID, call.Sent)
			if call.Parts != parts {
				t.Errorf("%s came in %d parts, want %d", call.Call, call.Parts, parts)
			}
		}
		if served.Status != http.StatusOK || served.Path != path || call.Received != want {
			t.Errorf("%s with PrefixAwareId %q got %q, want %q; the access log says %+v", call.Call, call.ID, call.Received, want, served)
		}
		homes.add(fmt.Sprintf("id %q", call.ID), served.Served)
	}
	homes.check(t, "")
	g.settled(len(calls))
}

// buildSageMaker builds the client, a module of its own for the sake of Homing's.
func buildSageMaker(t testing.TB) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "sagemaker")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	cmd.Dir = filepath.Join(env.Root(), "test/clients/sagemaker")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the client: %v\n%s", err, out)
	}
	return binary
}

// parts is how many parts a streamed response has.
const parts = 3

// answer is what a model server answers.
func answer(path, id, body string) string {
	return fmt.Sprintf("%s id=%q %d bytes, crc %08x", path, id, len(body), crc32.ChecksumIEEE([]byte(body)))
}

// sageMaker is a model server behind SageMaker's runtime API:
// https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_InvokeEndpointWithResponseStream.html
func sageMaker(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		http.Error(w, "not a signed request", http.StatusForbidden)
		return
	}
	text := answer(r.URL.Path, r.Header.Get("X-Amzn-SageMaker-Prefix-Aware-Id"), string(body))
	if !strings.HasSuffix(r.URL.Path, "-response-stream") {
		_, _ = io.WriteString(w, text)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
	for i := range parts {
		_, _ = w.Write(payloadPart(text[i*len(text)/parts : (i+1)*len(text)/parts]))
		_ = http.NewResponseController(w).Flush()
	}
}

// payloadPart is a message of an AWS event stream. The SDK checks it, checksums and all; the encoding is
// https://smithy.io/2.0/aws/amazon-eventstream.html.
func payloadPart(payload string) []byte {
	var headers []byte
	for _, header := range [][2]string{{":message-type", "event"}, {":event-type", "PayloadPart"}, {":content-type", "application/octet-stream"}} {
		name, value := header[0], header[1]
		headers = append(append(headers, byte(len(name))), name...)
		headers = append(headers, 7) // a string
		headers = append(binary.BigEndian.AppendUint16(headers, uint16(len(value))), value...)
	}
	const prelude, checksum = 12, 4
	message := binary.BigEndian.AppendUint32(nil, uint32(prelude+len(headers)+len(payload)+checksum))
	message = binary.BigEndian.AppendUint32(message, uint32(len(headers)))
	message = binary.BigEndian.AppendUint32(message, crc32.ChecksumIEEE(message))
	message = append(append(message, headers...), payload...)
	return binary.BigEndian.AppendUint32(message, crc32.ChecksumIEEE(message))
}
