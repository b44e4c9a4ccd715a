package prompt

import "github.com/zeebo/xxh3"

// tool is a tool definition that is being read. Templates are shown the same function whichever API it
// comes by, so the members that make it are the digest, in whatever order and wrapping they come.
type tool struct {
	known  [5]uint64 // digests of: name, description, parameters, strict, defer_loading
	member int       // the one that is being read; -1 for another
	key    uint64    // digest of that other's name
	kind   uint64    // digest of the type, 0 for a function
	other  uint64    // digest of all other members
}

func (t *tool) setType(word []byte, d Dialect) {
	if t.kind = max(xxh3.Hash(word), 1); string(word) == "function" || d == Messages && string(word) == "custom" {
		t.kind = 0
	}
}

// toolMember says what a tool's member called b.word is for.
func (b *body) toolMember(in container) slot {
	t := &b.tool
	switch string(b.word) {
	case "name":
		t.member = 0
	case "description":
		t.member = 1
	case "parameters", "input_schema":
		t.member = 2
	case "strict":
		t.member = 3
	case "defer_loading":
		t.member = 4
	case "cache_control":
		return noSlot
	default:
		return b.otherToolMember(in)
	}
	t.known[t.member] = 0
	return slotToolMember
}

func (b *body) otherToolMember(in container) slot {
	if in == inToolFunction {
		return noSlot
	}
	switch string(b.word) {
	case "function":
		return slotToolFunction
	case "type":
		b.tool.kind = 0
		return slotToolType
	}
	b.tool.member, b.tool.key = -1, xxh3.Hash(b.word)
	return slotToolMember
}

func (b *body) setToolMember(digest uint64) {
	if t := &b.tool; t.member >= 0 {
		t.known[t.member] = digest
	} else {
		t.other += mix(t.key, digest, 0) // a sum, for any order
	}
}

// endTool adds a tool to the digest of all.
func (b *body) endTool() {
	t := &b.tool
	digest := mix(mix(t.known[0], t.known[1], t.known[2]), t.known[3], t.known[4])
	if t.kind != 0 {
		digest = mix(digest, t.kind, t.other)
	}
	all := &b.tools
	if b.legacy {
		all = &b.functions
	}
	*all = mix(*all, digest, 0)
}

// allTools is the digest of the tools and functions, 0 if there are none.
func (i *ids) allTools() uint64 {
	if i.functions == 0 {
		return i.tools
	}
	return mix(i.tools, i.functions, 1)
}

// tokenID is the value of a token id; one that is not written as a whole number gets a value of its own.
func tokenID(word []byte) uint64 {
	id := uint64(0)
	for _, c := range word {
		if c < '0' || c > '9' {
			return xxh3.Hash(word)
		}
		id = id*10 + uint64(c-'0')
	}
	return id
}
