package extproc

import (
	"encoding/json"
	"errors"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/homing-dev/homing/pkg/picker"
)

// errNoPool says that the snapshot does not have the pool this service is for.
var errNoPool = errors.New("pool is not served")

// refusal is how a request that gets no endpoint is answered.
type refusal struct {
	err        error
	status     typev3.StatusCode
	reason     string // the metric's label, and the error's code
	kind       string // OpenAI's error type
	message    string // what to do
	retryAfter string // seconds
}

// refusals is the one table from errors to answers. Its last row is for errors that are not in it.
var refusals = []refusal{
	{
		err: errNoPool, status: typev3.StatusCode_ServiceUnavailable, reason: "no_pool", kind: "server_error",
		message: "this model's pool is not served at the moment: retry later; " +
			"if it lasts, ask the operator whether the InferencePool exists and was accepted",
	},
	{
		err: picker.ErrNoEndpoints, status: typev3.StatusCode_ServiceUnavailable, reason: "no_ready_endpoint", kind: "server_error",
		message: "no model server that may take this request is ready: retry later; " +
			"if it lasts, ask the operator to check the pool's selector, its pods' readiness and the policy's nodeSelector",
	},
	{
		err: picker.ErrSaturated, status: typev3.StatusCode_TooManyRequests, reason: "saturated", kind: "rate_limit_error",
		message:    "every model server is at its concurrency limit: retry after the time in the Retry-After header",
		retryAfter: "1",
	},
	{
		status: typev3.StatusCode_InternalServerError, reason: "internal", kind: "server_error",
		message: "the endpoint picker failed: retry, and tell the operator",
	},
}

// refusalOf finds the row for err.
func refusalOf(err error) int {
	last := len(refusals) - 1
	for i := range refusals[:last] {
		if errors.Is(err, refusals[i].err) {
			return i
		}
	}
	return last
}

// body is the refusal as OpenAI's clients read it: https://platform.openai.com/docs/guides/error-codes.
func (r *refusal) body() []byte {
	type detail struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	b, err := json.Marshal(map[string]detail{"error": {Message: r.message, Type: r.kind, Code: r.reason}})
	if err != nil {
		panic(err) // strings always marshal
	}
	return b
}
