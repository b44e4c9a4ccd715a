package controller

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// collection holds what is needed of each object of one kind, by name: all of a namespace, or all nodes.
// A reflector fills it; it is the only copy. T is a pointer or a map, nil for "no such object".
type collection[T any] struct {
	mu   *sync.Mutex  // the world's
	rows map[string]T // guarded by mu
	// synced is set for good once the API server has listed all objects. Guarded by mu.
	synced bool

	// keep is what is needed of an object. It keeps no reference to what it does not return.
	keep func(obj any) T
	// changed is called for each object that came, changed or went, under mu.
	changed func(old, now T)
	// wake is called after a change, without mu.
	wake func()
	// strip drops what keep does not need, before the reflector gathers a first list; nil keeps all.
	strip toolscache.TransformFunc
}

var _ toolscache.TransformingStore = (*collection[*pod])(nil)

// Add and Update are a reflector's: an object came or changed.
func (c *collection[T]) Add(obj any) error { return c.Update(obj) }

// Update implements [toolscache.ReflectorStore].
func (c *collection[T]) Update(obj any) error {
	name := obj.(metav1.Object).GetName()
	now := c.keep(obj)
	c.mu.Lock()
	c.put(name, now)
	c.mu.Unlock()
	c.wake()
	return nil
}

// Delete implements [toolscache.ReflectorStore].
func (c *collection[T]) Delete(obj any) error {
	c.mu.Lock()
	c.drop(obj.(metav1.Object).GetName())
	c.mu.Unlock()
	c.wake()
	return nil
}

// Replace implements [toolscache.ReflectorStore]: these are all objects there are.
func (c *collection[T]) Replace(objects []any, _ string) error {
	now := make(map[string]T, len(objects))
	for _, obj := range objects {
		now[obj.(metav1.Object).GetName()] = c.keep(obj)
	}
	c.mu.Lock()
	for name := range c.rows {
		if _, still := now[name]; !still {
			c.drop(name)
		}
	}
	for name, row := range now {
		c.put(name, row)
	}
	c.synced = true
	c.mu.Unlock()
	c.wake()
	return nil
}

// Resync implements [toolscache.ReflectorStore]; nothing is ever missed that it could make good.
func (c *collection[T]) Resync() error { return nil }

// Transformer implements [toolscache.TransformingStore].
func (c *collection[T]) Transformer() toolscache.TransformFunc { return c.strip }

func (c *collection[T]) put(name string, now T) {
	old := c.rows[name]
	c.rows[name] = now
	c.changed(old, now)
}

func (c *collection[T]) drop(name string) {
	old, was := c.rows[name]
	if !was {
		return
	}
	delete(c.rows, name)
	var none T
	c.changed(old, none)
}

func (c *collection[T]) isSynced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced
}
