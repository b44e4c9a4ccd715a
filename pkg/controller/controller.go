// Package controller publishes the pools that an API server describes: the InferencePools of one namespace
// whose endpointPickerRef names this install's Service, with the policies attached to them and the pods
// they select.
//
// Invariants: a snapshot is published only when all that decides has been listed, and is complete; what
// the API server does later - fails, forgets, forbids - leaves the last one in place. Every replica
// publishes; only the one that holds the Lease writes to the API server, and no snapshot waits for that.
package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
)

// Options are what a [Controller] is made of.
type Options struct {
	// Config says how to reach the API server.
	Config *rest.Config
	// Namespace of the install, and of the pools it serves.
	Namespace string
	// Service is the install's Service, by which pools name their picker.
	Service string
	// Store is published to.
	Store *endpoint.Store
	// Defaults are for what neither a policy nor an annotation says.
	Defaults endpoint.Policy
	// RefusePort says why a port cannot be a pool's, "" if it can; nil refuses none.
	RefusePort func(port uint16) (why string)
	// Replicas is told where the other replicas are, each time that the Service's endpoints change; nil asks for none.
	Replicas func([]Replica)
	// Pod is the name of this replica's own pod, which is left out of them. It may be empty.
	Pod string
	// Identity is this replica's name on the Lease for writing status. Empty, status is written without
	// one: there must be no other replica.
	Identity   string
	Registerer prometheus.Registerer
	Log        logr.Logger
}

// Controller follows an API server.
type Controller struct {
	options Options
	metrics *metrics
	world   *world
	status  *statusWriter

	pools, policies, pods, nodes *source
	replicas                     *source // nil unless they are asked for

	waiting atomic.Pointer[error] // why nothing has been published yet

	nodesForbidden error // why nodes may not be read, as last heard; of Start alone
}

// New makes a controller. It does not talk to the API server, which need not be there yet.
func New(o Options) (*Controller, error) {
	scheme, mapper, err := resources()
	if err != nil {
		return nil, err
	}
	o.Config = rest.CopyConfig(o.Config)
	if o.Config.QPS == 0 { // else client-go's 5, which a hundred policies would wait for
		o.Config.QPS, o.Config.Burst = 50, 100
	}
	web, err := rest.HTTPClientFor(o.Config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	api, err := client.NewWithWatch(o.Config, client.Options{Scheme: scheme, Mapper: mapper, HTTPClient: web})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	c := &Controller{options: o, metrics: newMetrics(o.Registerer), world: newWorld(o.Service, o.Defaults, o.RefusePort, time.Now)}
	if c.status, err = newStatusWriter(o, api, web, c.metrics); err != nil {
		return nil, err
	}
	newSource := func(resource, namespace string, example client.Object, newList func() client.ObjectList, store store) *source {
		return &source{
			resource: resource, namespace: namespace, example: example, newList: newList, store: store,
			client: api, metrics: c.metrics, log: o.Log, wake: c.world.wake,
		}
	}
	c.pools = newSource("inferencepools", o.Namespace, &inferencev1.InferencePool{},
		func() client.ObjectList { return &inferencev1.InferencePoolList{} }, &c.world.pools)
	c.policies = newSource("prefixroutingpolicies", o.Namespace, &v1alpha1.PrefixRoutingPolicy{},
		func() client.ObjectList { return &v1alpha1.PrefixRoutingPolicyList{} }, &c.world.policies)
	c.pods = newSource("pods", o.Namespace, &corev1.Pod{},
		func() client.ObjectList { return &corev1.PodList{} }, &c.world.pods)
	c.nodes = newSource("nodes", "", &metav1.PartialObjectMetadata{}, func() client.ObjectList {
		return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	}, &c.world.nodes)
	if o.Replicas != nil {
		c.replicas = newSource("endpointslices", o.Namespace, &discoveryv1.EndpointSlice{},
			func() client.ObjectList { return &discoveryv1.EndpointSliceList{} }, newReplicas(o))
		c.replicas.selector, c.replicas.wake = sliceSelector(o.Service), func() {}
	}
	return c, nil
}

// resources are the types the controller deals with, and where the API server has them. They are few and
// known, so nothing is asked of the API server's discovery, and a CRD may come at any time.
func resources() (*runtime.Scheme, meta.RESTMapper, error) {
	scheme := runtime.NewScheme()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, discoveryv1.AddToScheme, inferencev1.Install, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	for _, kind := range []schema.GroupVersionKind{
		{Group: inferencev1.GroupName, Version: inferencev1.GroupVersion.Version, Kind: "InferencePool"},
		v1alpha1.GroupVersion.WithKind("PrefixRoutingPolicy"),
		corev1.SchemeGroupVersion.WithKind("Pod"),
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	return scheme, mapper, nil
}

// Start publishes snapshots and writes status until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range []*source{c.pools, c.policies, c.pods} {
		running.Go(func() { s.run(ctx) })
	}
	if c.replicas != nil {
		running.Go(func() { c.replicas.run(ctx) })
	}
	running.Go(func() { c.status.run(ctx) })
	followNodes := sync.OnceFunc(func() { running.Go(func() { c.nodes.run(ctx) }) })
	c.world.wake()
	published := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.world.dirty:
		}
		if !published && !c.ready() {
			continue
		}
		nodes, why := c.nodeLabels()
		specs, view, since := c.world.build(nodes)
		if view.selectsNodes {
			followNodes()
		}
		if !published && view.selectsNodes && nodes == nodesPending {
			c.setWaiting(c.nodes.settled())
			continue // which endpoints may serve is not known yet
		}
		if !published || !since.IsZero() {
			c.options.Store.Publish(specs)
			if !since.IsZero() {
				c.metrics.publication.Observe(time.Since(since).Seconds())
			}
		}
		if !published {
			published = true
			c.setWaiting(nil)
			c.options.Log.Info("Published the first snapshot", "pools", len(specs))
		}
		view.nodesWrong = why
		c.status.show(view)
	}
}

// ready says whether all that decides has been listed.
func (c *Controller) ready() bool {
	var missing []string
	for _, s := range []*source{c.pools, c.policies, c.pods} {
		if err := s.settled(); err != nil {
			missing = append(missing, err.Error())
		}
	}
	if len(missing) > 0 {
		c.setWaiting(errors.New(strings.Join(missing, "; ")))
	}
	return len(missing) == 0
}

func (c *Controller) setWaiting(err error) { c.waiting.Store(&err) }

// Waiting is why nothing has been published yet, nil when something has.
func (c *Controller) Waiting() error {
	if err := c.waiting.Load(); err != nil {
		return *err
	}
	return errors.New("not started")
}

// nodeLabels says what is known of nodes' labels, and what is wrong with selecting by them, if something is. An API
// server that does not answer for a moment does not give back a right that it denied.
func (c *Controller) nodeLabels() (nodeLabels, error) {
	switch state, why := c.nodes.access(); state {
	case forbidden:
		c.nodesForbidden = why
	case watching:
		c.nodesForbidden = nil
	}
	why := c.nodesForbidden
	switch {
	case c.world.nodes.isSynced() && why == nil:
		return nodesKnown, nil
	case c.world.nodes.isSynced():
		return nodesKnown, fmt.Errorf("nodeSelector goes by labels as they were, because this install may not read nodes any more: %w", why)
	case why != nil:
		return nodesWithheld, fmt.Errorf("nodeSelector has no effect, because this install may not read nodes: %w", why)
	default:
		return nodesPending, nil
	}
}
