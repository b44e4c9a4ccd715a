// Package kubelet plays the kubelets of a test's nodes, without containers.
//
// Invariants: a pod that has an address has what its image stands for, there; it is Ready exactly while its readiness
// probe succeeds; what ended by itself is started again; and a deleted pod is gone once what ran in it has come to its
// end, so that its address is free by then.
package kubelet

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

// How often a container is probed: soon until it is ready.
const probeUnready, probeReady = 50 * time.Millisecond, time.Second

// restartAfter is how long a container that ended by itself is away: long enough for everybody to notice.
const restartAfter = 2 * time.Second

// Container is what runs in a pod.
type Container interface {
	// Stop asks it to end, as SIGTERM does, and returns when it has.
	Stop()
	// Done is closed when it has ended.
	Done() <-chan struct{}
}

// Image starts what stands for an image, at the address of the pod.
type Image func(context.Context, *corev1.Pod) (Container, error)

// Kubelet plays the kubelets of a cluster.
type Kubelet struct {
	cluster *cluster.Cluster
	images  map[string]Image
	log     func(format string, args ...any)
	running sync.WaitGroup

	mu         sync.Mutex // guards the two below
	pods       map[types.UID]*life
	containers map[string]Container // by the pod's namespace and name
}

// life is a pod's, as the informer tells it.
type life struct {
	end   chan struct{} // closed when the pod is to end
	ended bool          // whether it is
}

// Start runs the controller manager, the scheduler and kwok, which gives pods addresses inside cidr, and plays the
// kubelets until the test ends. Images are by their names without registry and tag; pods of others are Ready with
// nothing in them.
func Start(t testing.TB, c *cluster.Cluster, cidr string, images map[string]Image) *Kubelet {
	t.Helper()
	c.RunPods(t, cidr, filepath.Join(env.Root(), "test/kubelet/pod-address.yaml"))
	k := &Kubelet{cluster: c, images: images, log: t.Logf, pods: map[types.UID]*life{}, containers: map[string]Container{}}
	clients, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactory(clients, 0)
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { k.see(ctx, obj) },
		UpdateFunc: func(_, obj any) { k.see(ctx, obj) },
		DeleteFunc: k.gone,
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		k.running.Wait()
	})
	return k
}

// Container is what runs in a pod, nil if nothing does.
func (k *Kubelet) Container(namespace, pod string) Container {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.containers[namespace+"/"+pod]
}

func (k *Kubelet) see(ctx context.Context, obj any) {
	p := obj.(*corev1.Pod)
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.pods[p.UID]
	if l == nil {
		if p.Status.PodIP == "" && p.DeletionTimestamp == nil {
			return // not yet
		}
		l = &life{end: make(chan struct{})}
		k.pods[p.UID] = l
		k.running.Go(func() { k.live(ctx, p.DeepCopy(), l.end) })
	}
	if p.DeletionTimestamp != nil {
		l.finish()
	}
}

func (l *life) finish() {
	if !l.ended {
		l.ended = true
		close(l.end)
	}
}

func (k *Kubelet) gone(obj any) {
	if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if p, ok := obj.(*corev1.Pod); ok {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l := k.pods[p.UID]; l != nil {
			l.finish()
		}
	}
}

// live runs a pod's container, again and again if need be, until the pod is to end; then it removes the pod.
func (k *Kubelet) live(ctx context.Context, p *corev1.Pod, end <-chan struct{}) {
	for p.Status.PodIP != "" && !over(ctx, end) {
		if err := k.runContainer(ctx, p, end); err != nil && ctx.Err() == nil {
			k.log("pod %s/%s: %v", p.Namespace, p.Name, err)
		}
		select {
		case <-ctx.Done():
		case <-end:
		case <-time.After(restartAfter):
		}
	}
	if ctx.Err() != nil {
		return // the cluster ends too
	}
	err := k.cluster.Client.Delete(ctx, p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID})
	if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
		k.log("removing pod %s/%s: %v", p.Namespace, p.Name, err)
	}
}

func over(ctx context.Context, end <-chan struct{}) bool {
	select {
	case <-end:
		return true
	default:
		return ctx.Err() != nil
	}
}

// runContainer is a container's life: until it ends by itself, or the pod is to end.
func (k *Kubelet) runContainer(ctx context.Context, p *corev1.Pod, end <-chan struct{}) error {
	c, err := k.image(p)(ctx, p)
	if err != nil {
		return err
	}
	k.keep(p, c)
	defer k.keep(p, nil)
	for ready := false; ; {
		now := c == nothing{} || probe(ctx, p) == nil
		if now != ready && k.say(ctx, p, now) == nil { // else again
			ready = now
		}
		interval := probeUnready
		if ready {
			interval = probeReady
		}
		select {
		case <-ctx.Done():
			c.Stop()
			return nil
		case <-end:
			c.Stop()
			return nil
		case <-c.Done():
			return k.say(ctx, p, false)
		case <-time.After(interval):
		}
	}
}

func (k *Kubelet) keep(p *corev1.Pod, c Container) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key := p.Namespace + "/" + p.Name; c == nil {
		delete(k.containers, key)
	} else {
		k.containers[key] = c
	}
}

// image is what stands for the image of a pod's first container.
func (k *Kubelet) image(p *corev1.Pod) Image {
	name, _, _ := strings.Cut(path.Base(p.Spec.Containers[0].Image), ":")
	if image := k.images[name]; image != nil {
		return image
	}
	return func(context.Context, *corev1.Pod) (Container, error) { return nothing{}, nil }
}

// nothing is a container that is there.
type nothing struct{}

func (nothing) Stop()                 {}
func (nothing) Done() <-chan struct{} { return nil }

// say tells the API server that the pod runs, and whether it is Ready.
func (k *Kubelet) say(ctx context.Context, p *corev1.Pod, ready bool) error {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	base := p.DeepCopy()
	now := metav1.Now()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = nil
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now})
	}
	if err := k.cluster.Client.Status().Patch(ctx, p, client.StrategicMergeFrom(base)); err != nil {
		*p = *base
		return fmt.Errorf("saying that it is ready: %t: %w", ready, err)
	}
	return nil
}
