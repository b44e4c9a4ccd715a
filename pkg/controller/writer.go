package controller

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/api/v1alpha1"
)

const (
	// writeInterval is the least time between two rounds of writing, so that one change that comes in
	// several steps is written once.
	writeInterval = 200 * time.Millisecond
	// countInterval is the least time between two writes of one policy that only say how many endpoints
	// its pool has.
	countInterval = 5 * time.Second
	// writeRetry is how long a write that was refused is left alone.
	writeRetry = 10 * time.Second
)

// The Lease's times. Nobody waits for them but readers of status.
const (
	leaseDuration = 15 * time.Second
	leaseRenew    = 10 * time.Second
	leaseRetry    = 2 * time.Second
)

// statusWriter writes policies' status and events while this replica holds the Lease. The elector that
// comes with a controller-runtime manager ends the process when the Lease is lost, as it is whenever the
// API server is away for long; here that costs a status, and no request.
type statusWriter struct {
	client   client.Client
	recorder events.EventRecorder
	sink     events.EventBroadcaster
	lock     resourcelock.Interface // nil if there is no other replica
	metrics  *metrics
	log      logr.Logger
	now      func() time.Time

	latest  atomic.Pointer[view]
	elector atomic.Pointer[leaderelection.LeaderElector]
	changed chan struct{}

	// Of the goroutine that writes:
	written map[types.UID]write  // policies whose status is ours
	told    map[types.UID]string // what has been said of a pool
}

// write is the last status written to a policy; empty if it needed none.
type write struct {
	over   string // the resourceVersion that it replaced
	result *v1alpha1.PrefixRoutingPolicy
	at     time.Time

	refused time.Time // when the API server last refused one
}

func newStatusWriter(o Options, api client.Client, web *http.Client, m *metrics) (*statusWriter, error) {
	clients, err := kubernetes.NewForConfigAndClient(o.Config, web)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	w := &statusWriter{
		client: api, metrics: m, log: o.Log, now: time.Now, changed: make(chan struct{}, 1),
		written: map[types.UID]write{}, told: map[types.UID]string{},
		sink: events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.EventsV1()}),
	}
	w.recorder = w.sink.NewRecorder(api.Scheme(), "homing")
	if o.Identity != "" {
		w.lock = &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: LeaseName(o.Service)},
			Client:     clients.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		}
	}
	return w, nil
}

// LeaseName is the name of the Lease by which the replicas behind a Service agree who writes status.
func LeaseName(service string) string { return service + "-status" }

// show has the statuses of a view written, if this replica is the one to do it.
func (w *statusWriter) show(v view) {
	w.latest.Store(&v)
	w.poke()
}

func (w *statusWriter) poke() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// run writes until ctx ends.
func (w *statusWriter) run(ctx context.Context) {
	defer w.sink.Shutdown()
	if err := w.sink.StartRecordingToSinkWithContext(ctx); err != nil {
		w.log.Error(err, "Events cannot be recorded")
	}
	if w.lock == nil {
		w.metrics.leading(true)
	} else {
		done := make(chan struct{})
		defer func() { <-done }()
		go func() { defer close(done); w.stand(ctx) }()
	}
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-again.C:
		}
		if v := w.latest.Load(); v != nil && w.leads() {
			if wait := w.write(ctx, v); wait > 0 {
				again.Reset(wait)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(writeInterval):
		}
	}
}

// stand stands for election until ctx ends, again whenever the Lease was lost.
func (w *statusWriter) stand(ctx context.Context) {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: w.lock, ReleaseOnCancel: true, Name: w.lock.Describe(),
			LeaseDuration: leaseDuration, RenewDeadline: leaseRenew, RetryPeriod: leaseRetry,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) {
					w.metrics.leading(true)
					w.log.Info("Writing status from now on")
					w.poke()
				},
				OnStoppedLeading: func() { w.metrics.leading(false) },
			},
		})
		if err != nil {
			w.log.Error(err, "No election: status is not written") // the times above are wrong
			return
		}
		w.elector.Store(elector)
		elector.Run(ctx)
	}
}

func (w *statusWriter) leads() bool {
	if w.lock == nil {
		return true
	}
	elector := w.elector.Load()
	return elector != nil && elector.IsLeader()
}

// write makes the statuses those of the view. It returns when to do so again, 0 if there is no need.
func (w *statusWriter) write(ctx context.Context, v *view) (again time.Duration) {
	soon := func(d time.Duration) {
		if again == 0 || d < again {
			again = d
		}
	}
	held := func(last write) bool { // what was refused is left alone for a while
		wait := last.refused.Add(writeRetry).Sub(w.now())
		if wait > 0 {
			soon(wait)
		}
		return wait > 0
	}
	for _, p := range v.policies {
		last := w.written[p.object.UID]
		w.written[p.object.UID] = last // ours from now on, written or not
		p.object = last.orNewer(p.object)
		status := desired(p, v.nodesWrong, w.now())
		if equality.Semantic.DeepEqual(p.object.Status, status) {
			continue
		}
		if wait := last.at.Add(countInterval).Sub(w.now()); wait > 0 && onlyCounts(p.object.Status, status) {
			soon(wait)
			continue
		}
		if held(last) {
			continue
		}
		if w.patch(ctx, p.object, status) {
			for _, e := range news(&p.object.Status, &status) {
				w.recorder.Eventf(p.object, nil, e.kind, e.reason, "Configure", "%s", e.note)
			}
		} else {
			soon(writeRetry)
		}
	}
	for _, object := range v.others {
		last, was := w.written[object.UID]
		if !was || held(last) {
			continue
		}
		if w.patch(ctx, object, cleared(&object.Status)) {
			delete(w.written, object.UID)
		} else {
			soon(writeRetry)
		}
	}
	w.tell(v.pools)
	w.forget(v)
	return again
}

// orNewer is the policy as we left it, if the watch has not brought that yet.
func (last write) orNewer(object *v1alpha1.PrefixRoutingPolicy) *v1alpha1.PrefixRoutingPolicy {
	if last.result != nil && last.over == object.ResourceVersion {
		return last.result
	}
	return object
}

// patch writes a status over that of the object, and says whether it is there now. If somebody else wrote
// in between, what they wrote is on its way here, and will be answered.
func (w *statusWriter) patch(ctx context.Context, object *v1alpha1.PrefixRoutingPolicy, status v1alpha1.PrefixRoutingPolicyStatus) bool {
	result := object.DeepCopy()
	result.Status = status
	err := w.client.Status().Patch(ctx, result, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}))
	switch {
	case err == nil:
		w.written[object.UID] = write{over: object.ResourceVersion, result: result, at: w.now()}
		return true
	case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil:
		w.log.Error(err, "Cannot write a policy's status; trying again", "policy", object.Name)
		last := w.written[object.UID]
		last.refused = w.now()
		w.written[object.UID] = last
	}
	return false
}

// tell reports what is wrong with pools, on the pools themselves: their status is the gateways'.
func (w *statusWriter) tell(pools []poolView) {
	for _, p := range pools {
		var notes []string
		for _, problem := range p.problems {
			notes = append(notes, problem.Message)
		}
		note := strings.Join(notes, "; ")
		if note != "" && w.told[p.object.UID] != note {
			w.recorder.Eventf(p.object, nil, corev1.EventTypeWarning, p.problems[0].Reason, "Serve", "%s", note)
		}
		w.told[p.object.UID] = note
	}
}

// forget drops what is remembered of objects that are gone.
func (w *statusWriter) forget(v *view) {
	here := map[types.UID]bool{}
	for _, p := range v.policies {
		here[p.object.UID] = true
	}
	for _, object := range v.others {
		here[object.UID] = true
	}
	for _, p := range v.pools {
		here[p.object.UID] = true
	}
	for uid := range w.written {
		if !here[uid] {
			delete(w.written, uid)
		}
	}
	for uid := range w.told {
		if !here[uid] {
			delete(w.told, uid)
		}
	}
}
