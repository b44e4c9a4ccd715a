package simulate

// index is what a router believes to be cached where: for each engine a list of prefix keys, least
// recently used out first.
type index map[int]*keyList

func newIndex() index { return index{} }

// match is how many of the keys, from the first on, the engine has.
func (x index) match(engine int, keys []uint64) int {
	list := x[engine]
	if list == nil {
		return 0
	}
	for i, k := range keys {
		if list.keys[k] == nil {
			return i
		}
	}
	return len(keys)
}

// size is the summed weight of the engine's keys.
func (x index) size(engine int) int {
	if list := x[engine]; list != nil {
		return list.weight
	}
	return 0
}

// add notes that a prompt with these keys went to the engine, and forgets what is over capacity. A
// prompt's last key is the first of it to be forgotten.
func (x index) add(engine int, keys []uint64, weight func(i int) int, capacity int) {
	list := x[engine]
	if list == nil {
		list = &keyList{keys: map[uint64]*entry{}}
		list.ring.prev, list.ring.next = &list.ring, &list.ring
		x[engine] = list
	}
	for i := len(keys) - 1; i >= 0; i-- {
		list.touch(keys[i], weight(i))
	}
	for list.weight > capacity {
		list.forget(list.ring.next)
	}
}

type keyList struct {
	keys   map[uint64]*entry
	ring   entry // least recently used next
	weight int
}

type entry struct {
	key        uint64
	weight     int
	prev, next *entry
}

func (l *keyList) touch(key uint64, weight int) {
	e := l.keys[key]
	if e == nil {
		e = &entry{key: key, weight: weight}
		l.keys[key] = e
		l.weight += weight
	} else {
		e.prev.next, e.next.prev = e.next, e.prev
	}
	e.prev, e.next = l.ring.prev, &l.ring
	e.prev.next, e.next.prev = e, e
}

func (l *keyList) forget(e *entry) {
	e.prev.next, e.next.prev = e.next, e.prev
	delete(l.keys, e.key)
	l.weight -= e.weight
}
