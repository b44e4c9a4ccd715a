package controller

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReplicasAreTold(t *testing.T) {
	yes, no := true, false
	at := func(pod, address string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: c}
		if pod != "" {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pod}
		}
		return e
	}
	slice := func(name string, endpoints ...discoveryv1.Endpoint) any {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Endpoints: endpoints}
	}
	ready := discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}
	var told [][]string
	r := newReplicas(Options{Pod: "own", Replicas: func(list []Replica) {
		words := []string{}
		for _, p := range list {
			words = append(words, fmt.Sprint(p.Pod, " ", p.Address, " ", p.Serving))
		}
		told = append(told, words)
	}})
	for _, step := range []struct {
		what string
		do   func() error
		want [][]string
	}{
		{"not listed yet", func() error { return r.Add(slice("a", at("x", "10.0.0.2", ready))) }, nil},
		{"no endpoint", func() error { return r.Replace(nil, "") }, nil},
		{"this one alone", func() error { return r.Add(slice("a", at("own", "10.0.0.1", ready))) }, [][]string{{}}},
		{"others", func() error {
			return r.Add(slice("b", at("y", "10.0.0.3", discoveryv1.EndpointConditions{}), at("x", "10.0.0.2", discoveryv1.EndpointConditions{Ready: &no}),
				at("", "10.0.0.4", ready), at("z", "example.com", ready), discoveryv1.Endpoint{}))
		}, [][]string{{"10.0.0.4 10.0.0.4 true", "x 10.0.0.2 false", "y 10.0.0.3 true"}}},
		{"another slice that says the same", func() error { return r.Add(slice("c", at("y", "10.0.0.3", ready), at("y", "fd00::3", ready))) }, nil},
		{"a slice goes", func() error { return r.Delete(slice("b")) }, [][]string{{"y 10.0.0.3 true"}}},
		{"all go", func() error { return r.Replace(nil, "") }, [][]string{{}}},
	} {
		told = nil
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}
