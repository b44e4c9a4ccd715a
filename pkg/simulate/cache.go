package simulate

// cache is an engine's prefix cache: full blocks, least recently used out first, pinned ones never.
//
// Blocks are kept by segment, the run of full blocks that end inside one span of a prompt, so work grows
// with spans and not with tokens. What is cached of a segment is always its head, and what is cached of a
// prompt its start: whoever pins a segment pins those before it, and they are released last to first.
// Unlike vLLM, two requests that compute the same block at the same time end up with one copy of it, as
// in SGLang.
type cache struct {
	block    int // tokens
	capacity int // blocks
	free     int // blocks that hold nothing
	idle     int // blocks that are cached and pinned by nobody
	segments map[uint64]*segment
	lru      segment  // ring of idle segments, least recently used next
	spare    *segment // pool of segments to use again, linked by next
}

type segment struct {
	chain      uint64
	blocks     int
	pins       int
	prev, next *segment // in the ring, when pins is 0
}

func newCache(m Memory) *cache {
	n := m.KVTokens / m.BlockTokens
	c := &cache{block: m.BlockTokens, capacity: n, free: n, segments: map[uint64]*segment{}}
	c.lru.prev, c.lru.next = &c.lru, &c.lru
	return c
}

// range of full blocks that end inside span i.
func (c *cache) blocksOf(spans []span, i int) (from, to int) {
	if i > 0 {
		from = int(spans[i-1].end) / c.block
	}
	return from, int(spans[i].end) / c.block
}

// match is how many blocks of the spans' start are cached.
func (c *cache) match(spans []span) (blocks int) {
	for i := range spans {
		from, to := c.blocksOf(spans, i)
		if from == to {
			continue
		}
		s := c.segments[spans[i].chain]
		if s == nil {
			break
		}
		blocks += min(s.blocks, to-from)
		if blocks < to {
			break
		}
	}
	return blocks
}

// room is how many blocks can be had.
func (c *cache) room() int { return c.free + c.idle }

// take takes blocks that hold nothing of value, evicting as needed. The caller has checked room.
func (c *cache) take(blocks int) {
	for c.free < blocks {
		s := c.lru.next
		n := min(s.blocks, blocks-c.free)
		s.blocks -= n
		c.free += n
		c.idle -= n
		if s.blocks == 0 {
			c.unlink(s)
			c.drop(s)
		}
	}
	c.free -= blocks
}

func (c *cache) pin(s *segment) {
	if s.pins == 0 && s.blocks > 0 {
		c.unlink(s)
		c.idle -= s.blocks
	}
	s.pins++
}

func (c *cache) unpin(s *segment) {
	s.pins--
	if s.pins > 0 {
		return
	}
	if s.blocks == 0 {
		c.drop(s)
		return
	}
	s.prev, s.next = c.lru.prev, &c.lru
	s.prev.next, s.next.prev = s, s
	c.idle += s.blocks
}

func (c *cache) unlink(s *segment) {
	s.prev.next, s.next.prev = s.next, s.prev
	s.prev, s.next = nil, nil
}

func (c *cache) drop(s *segment) {
	delete(c.segments, s.chain)
	s.next, c.spare = c.spare, s
}

// get is the segment of that chain, a new one if need be.
func (c *cache) get(chain uint64) *segment {
	if s := c.segments[chain]; s != nil {
		return s
	}
	s := c.spare
	if s == nil {
		s = &segment{}
	} else {
		c.spare = s.next
	}
	*s = segment{chain: chain}
	c.segments[chain] = s
	return s
}

// lease is the blocks of one request: shared ones, from the start of its text, and then private ones.
type lease struct {
	pinned  []*segment
	span    int // the first span not yet wholly shared
	shared  int // blocks
	private int // blocks
}

// open pins what is cached of the spans' start, at most limit blocks of it.
func (c *cache) open(l *lease, spans []span, limit int) {
	*l = lease{pinned: l.pinned[:0]}
	c.share(l, spans, min(c.match(spans), limit))
}

// grow takes private blocks until the lease has that many in all. It says whether there was room.
func (c *cache) grow(l *lease, blocks int) bool {
	n := blocks - l.shared - l.private
	if n <= 0 {
		return true
	}
	if n > c.room() {
		return false
	}
	c.take(n)
	l.private += n
	return true
}

// publish caches the first blocks of the lease, which have been computed.
func (c *cache) publish(l *lease, spans []span, blocks int) {
	before := l.shared
	added := c.share(l, spans, blocks)
	computed := l.shared - before
	l.private -= computed
	c.free += computed - added
}

// share pins segments until the lease's shared part is that long, and says how many blocks were new.
func (c *cache) share(l *lease, spans []span, blocks int) (added int) {
	for l.shared < blocks {
		from, to := c.blocksOf(spans, l.span)
		if from == to {
			l.span++
			continue
		}
		var s *segment
		if l.shared == from {
			s = c.get(spans[l.span].chain)
			c.pin(s)
			l.pinned = append(l.pinned, s)
		} else {
			s = l.pinned[len(l.pinned)-1]
		}
		upTo := min(blocks, to)
		if n := upTo - from - s.blocks; n > 0 {
			s.blocks += n
			added += n
		}
		l.shared = upTo
		if upTo == to {
			l.span++
		}
	}
	return added
}

// close gives everything back. What was cached stays, as the most recently used.
func (c *cache) close(l *lease) {
	c.free += l.private
	for i := len(l.pinned) - 1; i >= 0; i-- {
		c.unpin(l.pinned[i])
	}
	*l = lease{pinned: l.pinned[:0]}
}
