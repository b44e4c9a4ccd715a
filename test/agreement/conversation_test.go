package agreement

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// request is an HTTP request to an engine.
type request struct{ path, body string }

// turn is a message of a conversation, a tool call, or a tool's result.
type turn struct {
	role string // system, user, assistant; "call"; "result"
	text string // of a call, its arguments as JSON
}

// conversation is what a client wants to say, before it is written in a dialect.
type conversation struct {
	model string
	tools []tool
	turns []turn
	extra object // members that every dialect knows
}

type tool struct{ name, description, property string }

// schema is the tool's parameters.
func (t tool) schema() object {
	return obj("type", "object", "properties", obj(t.property, obj("type", "string", "description", "A \"city\" name")),
		"required", list{t.property})
}

const callID = "call_1"

func (c conversation) members(limit string) object {
	o := obj("model", c.model, limit, 1, "temperature", 0)
	return append(o, c.extra...)
}

// chat is the conversation for /v1/chat/completions.
func (c conversation) chat() object {
	var messages list
	for _, t := range c.turns {
		switch t.role {
		case "call":
			messages = append(messages, obj("role", "assistant", "content", nil, "tool_calls",
				list{obj("id", callID, "type", "function", "function", obj("name", "get_weather", "arguments", t.text))}))
		case "result":
			messages = append(messages, obj("role", "tool", "tool_call_id", callID, "content", t.text))
		default:
			messages = append(messages, obj("role", t.role, "content", t.text))
		}
	}
	o := c.members("max_tokens").with("messages", messages)
	return c.addTools(o, "none", func(t tool) object {
		return obj("type", "function", "function", obj("name", t.name, "description", t.description, "parameters", t.schema()))
	})
}

// addTools adds the tools, if there are any, as a dialect writes them, and that none is to be called.
func (c conversation) addTools(o object, none any, write func(tool) object) object {
	var tools list
	for _, t := range c.tools {
		tools = append(tools, write(t))
	}
	if tools == nil {
		return o
	}
	return o.with("tools", tools, "tool_choice", none)
}

// responses is the conversation for /v1/responses.
func (c conversation) responses() object {
	var input list
	o := c.members("max_output_tokens")
	for i, t := range c.turns {
		switch {
		case t.role == "call":
			input = append(input, obj("type", "function_call", "call_id", callID, "name", "get_weather", "arguments", t.text))
		case t.role == "result":
			input = append(input, obj("type", "function_call_output", "call_id", callID, "output", t.text))
		case i == 0 && t.role == "system":
			o = o.with("instructions", t.text)
		case t.role == "assistant":
			input = append(input, obj("type", "message", "id", "msg_1", "status", "completed", "role", "assistant", "content",
				list{obj("type", "output_text", "text", t.text, "annotations", list{})}))
		default:
			input = append(input, obj("role", t.role, "content", t.text))
		}
	}
	o = append(obj("input", input), o...)
	return c.addTools(o, "none", func(t tool) object {
		return obj("type", "function", "name", t.name, "description", t.description, "parameters", t.schema())
	})
}

// messages is the conversation for /v1/messages.
func (c conversation) messages() object {
	var messages list
	o := c.members("max_tokens")
	for i, t := range c.turns {
		switch {
		case i == 0 && t.role == "system":
			o = o.with("system", t.text)
		case t.role == "call":
			messages = append(messages, obj("role", "assistant", "content",
				list{obj("type", "tool_use", "id", callID, "name", "get_weather", "input", raw(t.text))}))
		case t.role == "result":
			messages = append(messages, obj("role", "user", "content",
				list{obj("type", "tool_result", "tool_use_id", callID, "content", t.text)}))
		default:
			messages = append(messages, obj("role", t.role, "content", t.text))
		}
	}
	o = append(obj("messages", messages), o...)
	return c.addTools(o, obj("type", "none"), func(t tool) object {
		return obj("name", t.name, "description", t.description, "input_schema", t.schema())
	})
}

func chat(o object) request      { return request{"/v1/chat/completions", plain(o)} }
func responses(o object) request { return request{"/v1/responses", plain(o)} }
func messages(o object) request  { return request{"/v1/messages", plain(o)} }

var words = strings.Fields(`You are a careful assistant of a support desk Answer the question of the user in few words
	The endpoint picker sends a request to the replica whose cache holds the longest prefix of the prompt A gateway reads
	the body model name messages tools and headers When two replicas hold the same prefix one with shorter queue wins`)

// prose is n characters of words, by chance.
func prose(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:n-1] + "."
}

// unicode is n characters in several scripts, by chance.
func unicode(r *rand.Rand, n int) string {
	alphabet := []rune("aeinrst äöüß éà çñ жизнь 上海天气 こんにちは 😀🚀👩‍💻 \u0301\"\\/\t")
	var b strings.Builder
	for range n {
		b.WriteRune(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

// fresh is a conversation whose text no other begins with, longer than the prefix: a system prompt, a
// question, an answer and another question.
func fresh(r *rand.Rand) conversation {
	return conversation{model: baseModel, turns: []turn{
		{"system", fmt.Sprintf("%x ", r.Uint64()) + prose(r, 400)},
		{"user", prose(r, 300)},
		{"assistant", prose(r, 250)},
		{"user", prose(r, 700)},
	}}
}

// withCall is such a conversation with a tool call early on.
func withCall(r *rand.Rand) conversation {
	return conversation{model: baseModel, tools: []tool{weather(r)}, turns: []turn{
		{"system", fmt.Sprintf("%x ", r.Uint64()) + prose(r, 60)},
		{"user", prose(r, 60)},
		{"call", `{"city":"Shanghai","unit":"celsius"}`},
		{"result", prose(r, 200)},
		{"assistant", prose(r, 150)},
		{"user", prose(r, 900)},
	}}
}

// weather is a tool that no other conversation has: templates put tools first.
func weather(r *rand.Rand) tool {
	return tool{"get_weather", fmt.Sprintf("%x: the weather of a city", r.Uint64()), "city"}
}

// change is the conversation with another text at turn i.
func (c conversation) change(i int, text string) conversation {
	c.turns = append([]turn{}, c.turns...)
	c.turns[i].text = text
	return c
}

// recast is the conversation with another role at turn i.
func (c conversation) recast(i int, role string) conversation {
	c.turns = append([]turn{}, c.turns...)
	c.turns[i].role = role
	return c
}

func (c conversation) withTools(tools ...tool) conversation {
	c.tools = tools
	return c
}

func (c conversation) with(pairs ...any) conversation {
	c.extra = c.extra.with(pairs...)
	return c
}

func (c conversation) on(model string) conversation {
	c.model = model
	return c
}
