package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
)

// fakeWatch answers lists and watches with errors.
type fakeWatch struct {
	client.WithWatch
	listErr, watchErr error
}

func (f *fakeWatch) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return f.listErr
}

func (f *fakeWatch) Watch(context.Context, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
	return watch.NewEmptyWatch(), f.watchErr
}

func TestWhatIsSaidOfASource(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := func(verb string) error {
		return apierrors.NewForbidden(pods, "", fmt.Errorf(`User "x" cannot %s resource "pods"`, verb))
	}
	refused := errors.New("connection refused")
	collection := &testWorld().pods
	var logged []string
	api := &fakeWatch{}
	s := &source{
		resource: "pods", client: api, store: collection, wake: func() {},
		newList: func() client.ObjectList { return &inferencev1.InferencePoolList{} },
		metrics: newMetrics(prometheus.NewRegistry()),
		log:     funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{}),
	}
	streamed := true
	for _, step := range []struct {
		what          string
		list, watch   error // what the API server answers to the list and to a watch that streams it
		then          error // and to the watch that follows a list
		synced        bool
		settled, logs string
	}{
		{what: "the API server is away", watch: refused, settled: "connection refused", logs: "connection refused"},
		{what: "still", watch: refused, settled: "connection refused"},
		{what: "no right", watch: forbidden("watch"), list: forbidden("list"), settled: "cannot list", logs: "cannot list"},
		{what: "still none", watch: forbidden("watch"), list: forbidden("list"), settled: "cannot list"},
		{what: "half the right", watch: forbidden("watch"), then: forbidden("watch"), synced: true, settled: "cannot watch", logs: "cannot watch"},
		{what: "no CRD", watch: apierrors.NewNotFound(pods, ""), list: apierrors.NewNotFound(pods, ""), logs: "is its CustomResourceDefinition installed?"},
		{what: "an older API server", watch: apierrors.NewInvalid(schema.GroupKind{}, "", nil), synced: true, logs: "Following"},
		{what: "watching, not listed", synced: false, settled: "not listed yet"},
		{what: "the watch expired", watch: apierrors.NewResourceExpired("too old"), synced: true},
		{what: "all well", synced: true},
	} {
		t.Run(step.what, func(t *testing.T) {
			logged, collection.synced = nil, step.synced
			api.listErr, api.watchErr = step.list, step.watch
			_, err := s.watch(t.Context(), metav1.ListOptions{SendInitialEvents: &streamed})
			if answered(err) { // a reflector falls back to a list
				if _, err := s.list(t.Context(), metav1.ListOptions{}); err == nil {
					api.watchErr = step.then
					_, _ = s.watch(t.Context(), metav1.ListOptions{})
				}
			}
			got := ""
			if err := s.settled(); err != nil {
				got = err.Error()
			}
			if (got == "") != (step.settled == "") || !strings.Contains(got, step.settled) {
				t.Errorf("settled: %q, want %q", got, step.settled)
			}
			text := strings.Join(logged, "\n")
			if (text == "") != (step.logs == "") || !strings.Contains(text, step.logs) {
				t.Errorf("logged %q, want %q", text, step.logs)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	logged = nil
	s.note(ended, context.Canceled)
	if diff := cmp.Diff([]string(nil), logged); diff != "" || !s.isWatching() {
		t.Errorf("the end is taken for a failure: %s", diff)
	}
}
