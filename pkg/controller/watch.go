package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// retryInterval is how long a list or watch that failed is left alone, half as long again at most: so
// soon a CRD is picked up that was not there, or a right that was missing.
const retryInterval = 3 * time.Second

// access is how a source stands with the API server.
type access uint8

const (
	pending   access = iota // nothing has come yet
	watching                // all is listed, changes are followed
	missing                 // the API server does not have the resource: its CRD is not installed
	forbidden               // this install may not list or watch it
	failing                 // anything else
)

// store is a [collection] of any kind.
type store interface {
	toolscache.ReflectorStore
	isSynced() bool
}

// source keeps a collection in step with the API server.
type source struct {
	resource  string          // "pods", as RBAC names it
	namespace string          // "" for all
	selector  labels.Selector // nil for all
	example   client.Object
	newList   func() client.ObjectList
	store     store
	client    client.WithWatch
	metrics   *metrics
	log       logr.Logger
	// wake is called when the state changes.
	wake func()

	mu    sync.Mutex
	state access // guarded by mu
	why   error  // guarded by mu; why it is not watching
}

// run follows the resource until ctx ends.
func (s *source) run(ctx context.Context) {
	s.metrics.watching(s.resource, false)
	reflector := toolscache.NewReflectorWithOptions(&toolscache.ListWatch{
		ListWithContextFunc:  s.list,
		WatchFuncWithContext: s.watch,
	}, s.example, s.store, toolscache.ReflectorOptions{
		Name: s.resource, TypeDescription: s.resource,
		Backoff: &wait.Backoff{Duration: retryInterval / 4, Factor: 2, Jitter: 0.5, Steps: 3, Cap: 2 * retryInterval},
	})
	for ctx.Err() == nil {
		start := time.Now()
		// What it returns has been noted by list and watch, but for what a decoder says.
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && s.isWatching() {
			s.note(ctx, err)
		}
		delay := retryInterval
		if time.Since(start) > time.Minute {
			delay /= 10 // it worked until now
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(delay, 0.5)):
		}
	}
}

func (s *source) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list := s.newList()
	err := s.client.List(ctx, list, &client.ListOptions{Namespace: s.namespace, LabelSelector: s.selector, Raw: &options})
	if err != nil {
		s.note(ctx, err)
	}
	return list, err
}

func (s *source) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := s.client.Watch(ctx, s.newList(), &client.ListOptions{Namespace: s.namespace, LabelSelector: s.selector, Raw: &options})
	if streamed := options.SendInitialEvents != nil; err != nil && streamed && answered(err) {
		return w, err // an older API server, or a failure that the list to follow meets too
	}
	s.note(ctx, err)
	return w, err
}

// answered says whether an error came from the API server, not from the way there.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// note takes note of how a list failed, or how a watch began.
func (s *source) note(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // the end, or the usual way to be told to list again
	}
	state := failing
	switch {
	case err == nil:
		state = watching
	case apierrors.IsNotFound(err):
		state, err = missing, fmt.Errorf("the API server has no %s: is its CustomResourceDefinition installed?", s.resource)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		state = forbidden
	}
	s.mu.Lock()
	// What is forbidden may be another verb than before.
	news := s.state != state || state == forbidden && s.why.Error() != err.Error()
	s.state, s.why = state, err
	s.mu.Unlock()
	if !news {
		return
	}
	s.metrics.watching(s.resource, state == watching)
	switch state {
	case watching:
		s.log.Info("Following", "resource", s.resource)
	case missing: // not an error: it may come yet
		s.log.Info("Waiting for a resource", "resource", s.resource, "reason", err.Error())
	default:
		s.log.Error(err, "Cannot follow a resource; trying again until it works", "resource", s.resource)
	}
	s.wake()
}

func (s *source) isWatching() bool {
	state, _ := s.access()
	return state == watching
}

// access says how the source stands, and why it is not watching.
func (s *source) access() (access, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.why
}

// settled is nil if the collection is all there is: it has been listed and is being watched, or the API
// server knows no such objects.
func (s *source) settled() error {
	switch state, why := s.access(); {
	case state == watching && s.store.isSynced(), state == missing:
		return nil
	case why != nil:
		return fmt.Errorf("%s: %w", s.resource, why)
	default:
		return fmt.Errorf("%s: not listed yet", s.resource)
	}
}
