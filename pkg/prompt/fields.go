package prompt

// container is an object or an array that the reader is in.
type container uint8

const (
	inNothing  container = iota // a container that is passed over
	inAnything                  // a container whose tokens are hashed
	inRoot
	inMessage
	inPart
	inMedia
	inCall
	inFunction
	inTool
	inToolFunction
	// arrays
	inMessages
	inParts
	inCalls
	inTools
	inPrompts
	inTokenIDs
)

// maxContainers is the depth of: root, messages, message, parts, part, its parts, part, media.
const maxContainers = 8

func (c container) array() bool { return c >= inMessages }

// slot is what the next value is for.
type slot uint8

const (
	noSlot slot = iota
	// of the body
	slotModel
	slotCacheSalt
	slotCacheKey
	slotTools
	slotFunctions
	slotMessages
	slotItems  // Responses' input
	slotFront  // Anthropic's system, Responses' instructions
	slotPrompt // of completions and embeddings
	// of arrays
	slotMessage
	slotPart
	slotCall
	slotTool
	slotTokenID
	slotTokenIDs
	// of messages and their parts
	slotRole
	slotType
	slotContent
	slotCalls
	slotFunction
	slotName
	slotArguments
	slotPayload // of a custom tool call
	slotText
	slotResult
	slotMedia
	slotMediaID
	// of tools
	slotToolFunction
	slotToolType
	slotToolMember
)

// sink is where the inside of a string goes.
type sink uint8

const (
	noSink sink = iota
	toText
	toWord
	toDigest
	toMedia
	toTokens
	toPayload
)

// member says what the member called b.word is for, and forgets what an earlier one of that name said: of
// equal names the last one counts.
func (b *body) member(in container) slot {
	switch in {
	case inRoot:
		return b.rootMember()
	case inMessage:
		return b.messageMember()
	case inPart:
		return b.partMember()
	case inMedia:
		switch string(b.word) {
		case "url", "data", "file_data", "file_id", "file_url":
			return slotMedia
		}
	case inCall:
		if string(b.word) == "function" {
			b.call = call{}
			return slotFunction
		}
	case inFunction:
		switch string(b.word) {
		case "name":
			b.call.name = 0
			return slotName
		case "arguments":
			b.call.arguments = 0
			return slotArguments
		}
	case inTool, inToolFunction:
		return b.toolMember(in)
	}
	return noSlot
}

func (b *body) rootMember() slot {
	switch string(b.word) {
	case "model":
		b.model = 0
		return slotModel
	case "cache_salt":
		b.cacheSalt = 0
		return slotCacheSalt
	case "prompt_cache_key":
		b.cacheKey = 0
		return slotCacheKey
	}
	switch d := b.dialect; string(b.word) {
	case "tools":
		if d == Chat || d == Responses || d == Messages {
			b.tools = 0
			return slotTools
		}
	case "functions":
		if d == Chat {
			b.functions = 0
			return slotFunctions
		}
	case "messages":
		if d == Chat || d == Messages || d == Embeddings {
			b.restart(&b.main)
			return slotMessages
		}
	case "input":
		switch d {
		case Responses:
			b.restart(&b.main)
			return slotItems
		case Embeddings:
			b.restart(&b.main)
			return slotPrompt
		}
	case "prompt":
		if d == Completions {
			b.restart(&b.main)
			return slotPrompt
		}
	case "system", "instructions":
		if d == Messages && b.word[0] == 's' || d == Responses && b.word[0] == 'i' {
			b.restart(&b.front)
			return slotFront
		}
	}
	return noSlot
}

func (b *body) messageMember() slot {
	switch string(b.word) {
	case "role":
		b.msg.role = 0
		return slotRole
	case "type":
		b.msg.kind = kindNone
		return slotType
	case "content", "output":
		b.clearContent()
		return slotContent
	case "tool_calls":
		b.msg.tools = 0
		return slotCalls
	case "function_call":
		b.call = call{}
		return slotFunction
	}
	if b.dialect != Responses {
		return noSlot
	}
	switch string(b.word) {
	case "name":
		b.call.name = 0
		return slotName
	case "arguments":
		b.call.arguments = 0
		return slotArguments
	case "input":
		b.call.arguments = 0
		return slotPayload
	}
	return noSlot
}

func (b *body) partMember() slot {
	p := &b.parts[b.level]
	switch string(b.word) {
	case "type":
		p.kind = kindNone
		return slotType
	case "thinking":
		if b.dialect == Messages { // reasoning, which templates drop from history
			return noSlot
		}
		fallthrough
	case "text", "refusal":
		b.undo(p.before)
		return slotText
	case "uuid":
		p.mediaID = 0
		return slotMediaID
	case "image_url", "video_url", "audio_url", "input_audio", "file", "source",
		"data", "file_data", "file_id", "file_url", "image_embeds", "audio_embeds", "video_embeds":
		p.media = 0
		return slotMedia
	}
	if b.dialect != Messages || b.level > 0 {
		return noSlot
	}
	switch string(b.word) {
	case "name":
		b.call.name = 0
		return slotName
	case "input":
		b.call.arguments = 0
		return slotArguments
	case "content":
		b.undo(p.before)
		p.result, p.images = false, false
		return slotResult
	}
	return noSlot
}

// element says what the next value of an array is for.
func (b *body) element(in container) slot {
	switch in {
	case inMessages:
		return slotMessage
	case inParts:
		return slotPart
	case inCalls:
		return slotCall
	case inTools:
		return slotTool
	case inTokenIDs:
		return slotTokenID
	case inPrompts:
		if !b.first { // of several prompts, the first is the key
			return noSlot
		}
		return slotTokenIDs
	}
	return noSlot
}

// passed says whether the rest of the array that the reader is in can be passed over.
func (b *body) passed() bool {
	switch b.stack[b.depth-1] {
	case inMessages, inTokenIDs, inPrompts:
		return b.main.full()
	}
	return false
}
