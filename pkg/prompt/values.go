package prompt

import "github.com/zeebo/xxh3"

// openString says where the inside of a string goes.
func (b *body) openString() sink {
	switch b.slot {
	case slotModel, slotCacheSalt, slotCacheKey, slotName, slotMediaID:
		b.digest.reset()
		return toDigest
	case slotToolMember:
		b.digest.reset()
		b.digest.add([]byte{tokenQuote}) // an empty string is not a missing one
		return toDigest
	case slotRole, slotType, slotToolType:
		b.word = b.word[:0]
		return toWord
	case slotMedia:
		b.media.reset()
		return toMedia
	case slotArguments:
		b.tokens.reset()
		return toTokens
	case slotPayload:
		b.tokens.reset()
		b.tokens.add([]byte(`{"input":"`)) // as engines show it to a template
		return toPayload
	}
	if !b.openText() || b.dst.full() {
		return noSink
	}
	return toText
}

// endString takes what a string was, after openString.
func (b *body) endString() {
	switch b.slot {
	case slotModel:
		b.model = b.digest.sum()
	case slotCacheSalt:
		b.cacheSalt = b.digest.sum()
	case slotCacheKey:
		b.cacheKey = b.digest.sum()
	case slotName:
		b.call.name = b.digest.sum()
	case slotMediaID:
		b.parts[b.level].mediaID = b.digest.sum()
	case slotToolMember:
		b.setToolMember(b.digest.sum())
	case slotRole:
		b.msg.role = roleOf(b.word)
	case slotType:
		b.setKind(kindOf(b.word))
	case slotToolType:
		b.tool.setType(b.word, b.dialect)
	case slotMedia:
		b.parts[b.level].media = b.media.sum()
	case slotArguments:
		b.call.arguments = b.tokens.arguments()
	case slotPayload:
		b.tokens.str = false
		b.tokens.put([]byte{tokenUnquote, '}'})
		b.call.arguments = b.tokens.arguments()
	case slotItems, slotFront, slotPrompt, slotTokenIDs, slotContent, slotPart, slotText, slotResult:
		b.endText()
	}
}

// openContainer says how an array or object is read.
func (b *body) openContainer(array bool) container {
	if array {
		return b.openArray()
	}
	switch b.slot {
	case slotMessage:
		b.startMessage(&b.main, message{})
		return inMessage
	case slotPart:
		b.startPart()
		return inPart
	case slotMedia:
		if b.stack[b.depth-1] == inPart {
			return inMedia
		}
	case slotCall:
		b.call = call{}
		return inCall
	case slotFunction:
		return inFunction
	case slotTool:
		b.tool = tool{}
		return inTool
	case slotToolFunction:
		return inToolFunction
	case slotToolMember, slotArguments:
		return inAnything
	}
	return inNothing
}

func (b *body) openArray() container {
	switch b.slot {
	case slotMessages, slotItems:
		b.prev = message{mark: -1}
		return inMessages
	case slotFront:
		b.startMessage(&b.front, message{role: roleSystem})
		return inParts
	case slotPrompt:
		b.startMessage(&b.main, message{bare: true})
		b.first = true
		return inPrompts
	case slotTokenIDs:
		b.first = false
		return inTokenIDs
	case slotContent:
		b.msg.content = true
		return inParts
	case slotResult:
		b.startResult()
		return inParts
	case slotCalls:
		return inCalls
	case slotTools, slotFunctions:
		b.legacy = b.slot == slotFunctions
		return inTools
	case slotToolMember, slotArguments:
		return inAnything
	}
	return inNothing
}

// leave ends a container.
func (b *body) leave(in container) {
	switch in {
	case inMessage:
		b.endMessage()
	case inPart:
		b.endPart()
	case inParts:
		b.level = 0
	case inCall:
		b.msg.addCall(b.call)
	case inFunction:
		if b.stack[b.depth-1] == inMessage {
			b.msg.addCall(b.call)
		}
	case inTool:
		b.endTool()
	}
}

// endTokens takes the tokens of an array or object.
func (b *body) endTokens() {
	switch b.slot {
	case slotArguments:
		b.call.arguments = b.tokens.arguments()
	case slotToolMember:
		b.setToolMember(b.tokens.sum())
	}
}

// endScalar takes a number or literal.
func (b *body) endScalar() {
	null := b.word[0] == 'n'
	switch b.slot {
	case slotTokenID, slotTokenIDs:
		if !null {
			b.main.token(tokenID(b.word))
			b.checkText()
		}
	case slotToolMember:
		if !null {
			b.setToolMember(xxh3.Hash(b.word))
		}
	}
}
