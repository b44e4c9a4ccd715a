package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/homing-dev/homing/pkg/controller"
	"github.com/homing-dev/homing/test/env"
)

// slice is an EndpointSlice of a Service with endpoints as "pod address condition...".
func slice(namespace, name, service, family string, endpoints ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: %s, labels: {kubernetes.io/service-name: %s}}
addressType: %s
endpoints:
`, name, namespace, service, family)
	for _, e := range endpoints {
		words := strings.Fields(e)
		fmt.Fprintf(&b, "- {addresses: [%q], conditions: {%s}, targetRef: {kind: Pod, name: %s, namespace: %s}}\n",
			words[1], strings.Join(words[2:], " "), words[0], namespace)
	}
	return b.String()
}

// The other replicas are found by the slices of the Service: each once, this one not, with those that start or end.
func (r *rig) testPeers(t *testing.T) {
	const ns = "peers"
	const ready, starting = "ready: true, serving: true", "ready: false, serving: false"
	const leaving, ended = "ready: false, serving: true, terminating: true", "ready: false, serving: false, terminating: true"
	r.namespace(t, ns)
	r.withoutRight(t, ns, "endpointslices")
	var mu sync.Mutex
	var told []string // guarded by mu; nil if nothing was told
	rep := r.startAs(t, r.ServiceAccount(t, ns, "homing"), ns, "homing-0", func(o *controller.Options) {
		o.Pod = "homing-0"
		o.Replicas = func(list []controller.Replica) {
			mu.Lock()
			defer mu.Unlock()
			told = []string{}
			for _, p := range list {
				told = append(told, fmt.Sprint(p.Pod, " ", p.Address, " ", p.Serving))
			}
		}
	})
	tells := func(want ...string) {
		t.Helper()
		env.Eventually(t, func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if told == nil || !slices.Equal(told, want) {
				return fmt.Errorf("told of %q, want %q", told, want)
			}
			return nil
		})
	}
	// Without the right nobody is found, which keeps nothing else from being served.
	rep.serves(t, map[string][]string{})
	env.Eventually(t, func(context.Context) error {
		if !strings.Contains(rep.log.String(), `cannot list resource \"endpointslices\"`) {
			return errors.New("the log does not say so")
		}
		return nil
	})
	mu.Lock()
	if told != nil {
		t.Errorf("told of %q without a right to know", told)
	}
	mu.Unlock()

	r.grant(t, ns)
	r.apply(t, slice(ns, "homing-a", "homing", "IPv4", "homing-0 10.0.0.1 "+starting))
	tells()
	r.apply(t, slice(ns, "homing-a", "homing", "IPv4", "homing-0 10.0.0.1 "+ready, "homing-1 10.0.0.2 "+ready)+
		slice(ns, "homing-b", "homing", "IPv4", "homing-2 10.0.0.3 "+starting)+
		slice(ns, "other-a", "other", "IPv4", "other-0 10.0.0.9 "+ready))
	tells("homing-1 10.0.0.2 true", "homing-2 10.0.0.3 false")
	// Addresses of both families are one replica; one that terminates may serve or not.
	r.apply(t, slice(ns, "homing-b", "homing", "IPv4", "homing-2 10.0.0.3 "+ready)+
		slice(ns, "homing-six", "homing", "IPv6", "homing-1 fd00::2 "+leaving)+
		slice(ns, "homing-a", "homing", "IPv4", "homing-0 10.0.0.1 "+ready, "homing-1 10.0.0.2 "+leaving))
	tells("homing-1 10.0.0.2 true", "homing-2 10.0.0.3 true")
	r.apply(t, slice(ns, "homing-a", "homing", "IPv4", "homing-0 10.0.0.1 "+ready, "homing-1 10.0.0.2 "+ended))
	tells("homing-1 10.0.0.2 false", "homing-2 10.0.0.3 true")
	for _, name := range []string{"homing-a", "homing-six"} {
		env.Check(t, r.api.Delete(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}))
	}
	tells("homing-2 10.0.0.3 true")
}

// withoutRight takes a resource out of the install's Role.
func (r *rig) withoutRight(t *testing.T, namespace, resource string) {
	t.Helper()
	var role rbacv1.Role
	env.Check(t, r.api.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "homing"}, &role))
	role.Rules = slices.DeleteFunc(role.Rules, func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, resource) })
	env.Check(t, r.api.Update(t.Context(), &role))
}
