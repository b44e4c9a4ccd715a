package standalone

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/policy"
	"github.com/homing-dev/homing/pkg/standalone/schema"
)

// Defaults are what a configuration does not say itself.
type Defaults struct {
	Policy endpoint.Policy
	// RefusePort says why a port cannot be a pool's, "" if it can; nil refuses none.
	RefusePort func(port uint16) (why string)
}

// name is what a document is called among those of its kind.
type name struct{ kind, namespace, name string }

// config is a configuration while it is being read. Whatever is wrong is added to errs, and reading
// goes on, so that all of it is said at once.
type config struct {
	rules    schema.Set
	defaults Defaults
	errs     Errors

	docs      map[name]*document
	pools     []inferencev1.InferencePool
	policies  []v1alpha1.PrefixRoutingPolicy
	endpoints map[endpoint.PoolName]*schema.StaticEndpoints
}

// load makes the pools of a directory's files, or says all that is wrong with them: [Errors].
func load(rules schema.Set, defaults Defaults, dir string, files []file) ([]endpoint.PoolSpec, error) {
	c := &config{
		rules: rules, defaults: defaults,
		docs: map[name]*document{}, endpoints: map[endpoint.PoolName]*schema.StaticEndpoints{},
	}
	for _, f := range files {
		docs, err := parseFile(f.path, f.content)
		if err != nil {
			c.errs = append(c.errs, *err)
			continue
		}
		for i := range docs {
			c.add(&docs[i])
		}
	}
	if len(c.errs) == 0 && len(c.pools) == 0 {
		c.errs = append(c.errs, Error{File: dir, Message: "no InferencePool in any *.yaml or *.yml file"})
	}
	var specs []endpoint.PoolSpec
	if len(c.errs) == 0 { // what refers to something broken is not worth complaining about
		specs = c.resolve()
	}
	if len(c.errs) > 0 {
		c.errs.sort()
		return nil, c.errs
	}
	return specs, nil
}

// add checks a document and takes it in.
func (c *config) add(doc *document) {
	apiVersion, _ := doc.object["apiVersion"].(string)
	kind, _ := doc.object["kind"].(string)
	rules := c.rules[schema.Key(apiVersion, kind)]
	if rules == nil {
		c.errs = append(c.errs, doc.at("", fmt.Sprintf("kind %q of apiVersion %q is not read here; want %s", kind, apiVersion, c.rules.Kinds())))
		return
	}
	if wrong := rules.Check(doc.object); len(wrong) > 0 {
		for _, e := range wrong {
			c.errs = append(c.errs, doc.at(e.Field, e.Message))
		}
		return
	}
	switch kind {
	case "InferencePool":
		if pool, id := decode[inferencev1.InferencePool](c, doc, kind); pool != nil {
			c.docs[id] = doc
			c.pools = append(c.pools, *pool)
		}
	case "PrefixRoutingPolicy":
		if p, id := decode[v1alpha1.PrefixRoutingPolicy](c, doc, kind); p != nil {
			c.docs[id] = doc
			c.policies = append(c.policies, *p)
		}
	case "StaticEndpoints":
		if list, id := decode[schema.StaticEndpoints](c, doc, kind); list != nil {
			c.docs[id] = doc
			c.endpoints[endpoint.PoolName{Namespace: id.namespace, Name: id.name}] = list
		}
	}
}

// named is what decode needs to know of a kind.
type named[T any] interface {
	*T
	GetNamespace() string
	GetName() string
}

// decode turns a checked document into its type; nil when it cannot be used.
func decode[T any, P named[T]](c *config, doc *document, kind string) (*T, name) {
	var object T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(doc.object, &object); err != nil {
		c.errs = append(c.errs, doc.at("", err.Error()))
		return nil, name{}
	}
	id := name{kind, P(&object).GetNamespace(), P(&object).GetName()}
	if first := c.docs[id]; first != nil {
		c.errs = append(c.errs, doc.at("metadata.name", fmt.Sprintf("%s %s/%s is already in %s:%d",
			kind, id.namespace, id.name, first.file, first.line("metadata.name"))))
		return nil, name{}
	}
	return &object, id
}

// resolve merges what was read. In a cluster a policy without a pool is a status; in files, where
// there is no status to look at, it is an error like a misspelt field.
func (c *config) resolve() []endpoint.PoolSpec {
	result := policy.Resolve(policy.Input{
		Pools: c.pools, Policies: c.policies, Defaults: c.defaults.Policy, RefusePort: c.defaults.RefusePort,
	})
	specs := make([]endpoint.PoolSpec, 0, len(result.Pools))
	told := map[policy.Problem]bool{}
	for _, p := range result.Pools {
		for _, problem := range p.Problems {
			told[problem] = true
			c.report(name{"InferencePool", p.Name.Namespace, p.Name.Name}, problem)
		}
		specs = append(specs, endpoint.PoolSpec{Name: p.Name, Port: p.Port, Policy: p.Policy, Endpoints: c.endpointsOf(p.Name, p.Nodes)})
		delete(c.endpoints, p.Name)
	}
	for _, s := range result.Statuses {
		if s.Refused != nil && !told[*s.Refused] { // a policy suffers what its pool does
			c.report(name{"PrefixRoutingPolicy", s.Namespace, s.Name}, *s.Refused)
		}
	}
	for left := range c.endpoints {
		c.report(name{"StaticEndpoints", left.Namespace, left.Name}, policy.Problem{
			Field: "metadata.name", Message: fmt.Sprintf("there is no InferencePool %s for these endpoints", left),
		})
	}
	return specs
}

// report adds a problem that is a sentence by itself, at the line of its field.
func (c *config) report(id name, p policy.Problem) {
	doc := c.docs[id]
	c.errs = append(c.errs, Error{doc.file, doc.line(p.Field), p.Message})
}

// endpointsOf lists the pool's endpoints that are ready and on a node that is selected.
func (c *config) endpointsOf(pool endpoint.PoolName, nodes labels.Selector) []endpoint.Spec {
	list := c.endpoints[pool]
	if list == nil {
		return nil
	}
	doc := c.docs[name{"StaticEndpoints", pool.Namespace, pool.Name}]
	var specs []endpoint.Spec
	addresses := map[string]netip.Addr{}
	taken := map[netip.AddrPort]string{}
	for i, e := range list.Endpoints {
		at := func(field, format string, args ...any) {
			c.errs = append(c.errs, doc.at(fmt.Sprintf("endpoints[%d].%s", i, field), fmt.Sprintf(format, args...)))
		}
		addr, err := netip.ParseAddr(e.Address)
		if err != nil || addr.Zone() != "" {
			at("address", "%q is not an IP address: want IPv4 or IPv6 without brackets, port, zone or host name", e.Address)
			continue
		}
		addr = addr.Unmap()
		spec := endpoint.Spec{ID: identity(e.Name, addr, e.Port), Name: e.Name, Addr: netip.AddrPortFrom(addr, uint16(e.Port))} //nolint:gosec // 1..65535 by its schema
		if other, ok := addresses[e.Name]; ok && other != addr {
			at("name", "%q is already at %s: one name is one server", e.Name, other)
			continue
		}
		if other, ok := taken[spec.Addr]; ok {
			at("port", "%s is already endpoint %q", spec.Addr, other)
			continue
		}
		addresses[e.Name], taken[spec.Addr] = addr, e.Name
		if e.Ready && nodes.Matches(labels.Set(e.NodeLabels)) {
			specs = append(specs, spec)
		}
	}
	slices.SortFunc(specs, func(a, b endpoint.Spec) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID.Port, b.ID.Port))
	})
	return specs
}

// identity is an endpoint's identity: its name at its address. A name that moves to another address is
// another server with another cache, as a pod that was replaced is, and the requests still running at
// the old address do not count for it.
func identity(name string, addr netip.Addr, port int32) endpoint.ID {
	return endpoint.ID{UID: name + "@" + addr.String(), Port: uint16(port)} //nolint:gosec // 1..65535 by its schema
}
