package agreement

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// pair is two requests, of which an engine shares the cache or does not.
type pair struct {
	name string
	// differ says that key and cache disagree, and why that is so; docs/keys.md lists each.
	differ string
	make   func(r *rand.Rand) (a, b request)
}

// pairs are what is compared, each with several conversations made by chance. Whether the keys should be
// equal is not written here: the engine says.
var pairs = []pair{
	{name: "itself", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.chat())
	}},
	{name: "another end", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.change(3, c.turns[3].text[:400]+"and now something else").chat())
	}},
	{name: "another start", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.change(0, "And "+c.turns[0].text).chat())
	}},
	{name: "another question", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		c.turns[0].text = c.turns[0].text[:100]
		return chat(c.chat()), chat(c.change(1, "No: "+c.turns[1].text).chat())
	}},
	{name: "spelling", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		c.turns[1].text += unicode(r, 60)
		b = chat(nil)
		b.body = spelled(c.chat(), r)
		return chat(c.chat()), b
	}},
	{name: "spelling with tools", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r)
		b = chat(nil)
		b.body = spelled(c.chat(), r)
		return chat(c.chat()), b
	}},
	{name: "byte order mark", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		b = chat(c.chat())
		b.body = "\ufeff" + b.body
		return chat(c.chat()), b
	}},
	{name: "unicode", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r).change(1, unicode(r, 900))
		return chat(c.chat()), responses(c.responses())
	}},
	{name: "one part", make: func(r *rand.Rand) (a, b request) { return fresh(r).asParts(1) }},
	{name: "two parts", make: func(r *rand.Rand) (a, b request) { return fresh(r).asParts(2) }},
	{name: "two messages", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		c.turns[0].text = c.turns[0].text[:100]
		split := c
		first, second, _ := strings.Cut(c.turns[1].text, " ")
		split.turns = append([]turn{c.turns[0], {"user", first}, {"user", second}}, c.turns[2:]...)
		return chat(c.chat()), chat(split.chat())
	}},
	{name: "role", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.recast(0, "user").chat())
	}},
	{name: "unknown role", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.recast(0, "wizard").chat())
	}},
	{name: "developer", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.recast(0, "developer").chat())
	}},
	{name: "last of equal members", make: func(r *rand.Rand) (a, b request) {
		c, other := fresh(r), fresh(r)
		twice := append(obj("messages", other.chat()[3].value, "model", "nobody"), c.chat()...)
		return chat(c.chat()), chat(twice)
	}},
	{name: "unknown members", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(append(obj("Messages", list{}, "x", obj("messages", list{1})), c.chat()...))
	}},
	{name: "sampling", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.with("top_p", 0.5, "seed", 7, "user", "someone", "stop", list{"x"}, "metadata", obj("a", "b")).chat())
	}},
	{name: "empty answer", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r).change(2, "")
		null := plain(c.chat())
		return chat(c.chat()), request{"/v1/chat/completions", strings.Replace(null, `"content":""`, `"content":null`, 1)}
	}},

	{name: "chat, Responses", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), responses(c.responses())
	}},
	{name: "chat, Messages", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), messages(c.messages())
	}},
	{name: "Messages, another system prompt", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return messages(c.messages()), messages(c.change(0, "And "+c.turns[0].text).messages())
	}},
	{name: "Responses, other instructions", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return responses(c.responses()), responses(c.change(0, "And "+c.turns[0].text).responses())
	}},
	{name: "Messages, system in blocks", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		text := c.turns[0].text
		o := c.messages()
		for i := range o {
			if o[i].name == "system" {
				o[i].value = list{
					obj("type", "text", "text", text[:100]),
					obj("type", "text", "text", text[100:], "cache_control", obj("type", "ephemeral")),
				}
			}
		}
		return messages(c.messages()), messages(o)
	}},
	{name: "Responses, input a string", make: func(r *rand.Rand) (a, b request) {
		text := fmt.Sprintf("%x ", r.Uint64()) + prose(r, 1400)
		c := conversation{model: baseModel, turns: []turn{{"user", text}}}
		return chat(c.chat()), responses(obj("model", baseModel, "input", text, "max_output_tokens", 1))
	}},

	{name: "tools, chat and Responses", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r)
		return chat(c.chat()), responses(c.responses())
	}},
	{name: "tools without a call, chat and Responses", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r).withTools(weather(r))
		return chat(c.chat()), responses(c.responses())
	}},
	{name: "a call without tools, chat and Responses", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r).withTools()
		return chat(c.chat()), responses(c.responses())
	}},
	{name: "tools, chat and Messages", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r)
		return chat(c.chat()), messages(c.messages())
	}},
	{name: "no tools", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.withTools(weather(r)).chat()), chat(c.chat())
	}},
	{name: "empty tools", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.with("tools", nil).chat())
	}},
	{name: "another tool", make: func(r *rand.Rand) (a, b request) {
		c, one := fresh(r), weather(r)
		return chat(c.withTools(one).chat()), chat(c.withTools(weather(r)).chat())
	}},
	{name: "another parameter", make: func(r *rand.Rand) (a, b request) {
		c, one := fresh(r), weather(r)
		other := one
		other.property = "town"
		return chat(c.withTools(one).chat()), chat(c.withTools(other).chat())
	}},
	{name: "tools in another order", make: func(r *rand.Rand) (a, b request) {
		c, one := fresh(r), weather(r)
		clock := tool{"get_time", "The time in a city", "city"}
		return chat(c.withTools(one, clock).chat()), chat(c.withTools(clock, one).chat())
	}},
	{name: "arguments", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r).withTools()
		return chat(c.chat()), chat(c.change(2, `{"city":"Beijing","unit":"celsius"}`).chat())
	}},
	{name: "arguments, spelled otherwise", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r).withTools()
		return chat(c.chat()), chat(c.change(2, `{ "city" : "Shangh\u0061i",`+"\n"+` "unit" : "celsius" }`).chat())
	}},
	{name: "arguments in another order", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r).withTools()
		return chat(c.chat()), chat(c.change(2, `{"unit":"celsius","city":"Shanghai"}`).chat())
	}},
	{name: "another result", make: func(r *rand.Rand) (a, b request) {
		c := withCall(r).withTools()
		return messages(c.messages()), messages(c.change(3, "Rain. "+c.turns[3].text).messages())
	}},

	{name: "cache salt", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.with("cache_salt", "x").chat()), chat(c.with("cache_salt", "y").chat())
	}},
	{name: "no cache salt", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.with("cache_salt", "x").chat()), chat(c.chat())
	}},
	{name: "equal cache salt", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r).with("cache_salt", "x")
		return chat(c.chat()), responses(c.responses())
	}},
	{name: "LoRA and base", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.on(loraOne).chat())
	}},
	{name: "two LoRAs", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.on(loraOne).chat()), chat(c.on(loraTwo).chat())
	}},
	{name: "equal LoRA", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r).on(loraTwo)
		return chat(c.chat()), messages(c.messages())
	}},

	{name: "completion", make: func(r *rand.Rand) (a, b request) {
		text := fmt.Sprintf("%x ", r.Uint64()) + prose(r, 1300)
		return completion(text), completion(list{text})
	}},
	{name: "another completion", make: func(r *rand.Rand) (a, b request) {
		text := fmt.Sprintf("%x ", r.Uint64()) + prose(r, 1300)
		return completion(text), completion("And " + text)
	}},
	{name: "token ids", make: func(r *rand.Rand) (a, b request) {
		ids := tokenIDs(r)
		return completion(ids), completion(list{append(list{}, ids...)})
	}},
	{name: "other token ids", make: func(r *rand.Rand) (a, b request) {
		ids := tokenIDs(r)
		other := append(list{500}, ids...)
		return completion(ids), completion(other)
	}},

	{name: "no model", differ: "an engine takes its own model when none is named; its name is not known here", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.chat()[1:])
	}},
	{name: "prompt_cache_key", differ: "it is an isolation id: the client wants these apart", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		return chat(c.chat()), chat(c.with("prompt_cache_key", "k").chat())
	}},
	{name: "UTF-16", differ: "only UTF-8 is read as JSON", make: func(r *rand.Rand) (a, b request) {
		c := fresh(r)
		b = chat(c.chat())
		b.body = utf16(b.body)
		return chat(c.chat()), b
	}},
}

func completion(prompt any) request {
	return request{"/v1/completions", plain(obj("model", baseModel, "prompt", prompt, "max_tokens", 1))}
}

// tokenIDs are enough ids to fill the prefix, unlike any others.
func tokenIDs(r *rand.Rand) list {
	ids := list{}
	for range 600 {
		ids = append(ids, 300+r.IntN(200))
	}
	return ids
}

// asParts is the conversation, and the same with its first question in n parts.
func (c conversation) asParts(n int) (a, b request) {
	text := c.turns[1].text
	parts := list{obj("type", "text", "text", text)}
	if n == 2 { // engines join parts by a newline
		parts = list{obj("type", "text", "text", text[:100]), obj("type", "text", "text", text[101:])}
		c = c.change(1, text[:100]+"\n"+text[101:])
	}
	whole := plain(c.chat())
	return chat(c.chat()), request{"/v1/chat/completions", strings.Replace(whole, plain(c.turns[1].text), plain(parts), 1)}
}

func utf16(s string) string {
	b := []byte{0xFF, 0xFE}
	for _, c := range s { // the bodies made here are within the basic plane
		b = append(b, byte(c), byte(c>>8))
	}
	return string(b)
}
