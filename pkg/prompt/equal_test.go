package prompt

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// readAll reads a body whole.
func readAll(t testing.TB, path, body string, o Options) Prompt {
	t.Helper()
	var r Reader
	r.Reset(path, "", o)
	r.Write([]byte(body))
	r.Close()
	return r.Prompt()
}

const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
	pathResponses   = "/v1/responses"
	pathEmbeddings  = "/v1/embeddings"
	pathMessages    = "/v1/messages"
)

// a request is a path and a body.
type request struct{ path, body string }

func chat(body string) request      { return request{pathChat, body} }
func complete(body string) request  { return request{pathCompletions, body} }
func respond(body string) request   { return request{pathResponses, body} }
func embed(body string) request     { return request{pathEmbeddings, body} }
func anthropic(body string) request { return request{pathMessages, body} }

// groups: requests of one group have one key, requests of two groups have not.
type group struct {
	name     string
	requests []request
}

// key is what of a prompt goes into a key.
type key struct {
	Model, CacheSalt, CacheKey, Tools uint64
	Text                              string
	HasText                           bool
}

func keyOf(t testing.TB, r request, o Options) key {
	p := readAll(t, r.path, r.body, o)
	if p.RawReason != NotRaw {
		t.Fatalf("%s %s: raw: %v", r.path, r.body, p.RawReason)
	}
	return key{p.Model, p.CacheSalt, p.CacheKey, p.Tools, string(p.Text), p.HasText}
}

func checkGroups(t *testing.T, groups []group) {
	t.Helper()
	firsts := map[key]string{}
	for _, g := range groups {
		want := keyOf(t, g.requests[0], Options{})
		for _, r := range g.requests[1:] {
			if diff := cmp.Diff(want, keyOf(t, r, Options{})); diff != "" {
				t.Errorf("%s: %s %s differs from %s (-first +this):\n%s", g.name, r.path, r.body, g.requests[0].body, diff)
			}
		}
		if other, ok := firsts[want]; ok {
			t.Errorf("%s and %s have one key", g.name, other)
		}
		firsts[want] = g.name
		checkCuts(t, g)
	}
}

// checkCuts checks that a group has one key at every PrefixLength, and in whatever chunks it is read.
func checkCuts(t *testing.T, g group) {
	t.Helper()
	for limit := 1; limit < 32; limit++ {
		o := Options{PrefixLength: limit}
		want := keyOf(t, g.requests[0], o)
		for _, r := range g.requests {
			if diff := cmp.Diff(want, keyOf(t, r, o)); diff != "" {
				t.Errorf("%s at %d: %s %s differs (-first +this):\n%s", g.name, limit, r.path, r.body, diff)
			}
			if diff := cmp.Diff(readAll(t, r.path, r.body, o), readBytewise(r, o)); diff != "" {
				t.Errorf("%s at %d: %s in single bytes differs (-whole +bytes):\n%s", g.name, limit, r.body, diff)
			}
		}
	}
}

func readBytewise(r request, o Options) Prompt {
	var reader Reader
	reader.Reset(r.path, "", o)
	for i := range len(r.body) {
		reader.Write([]byte{r.body[i]})
	}
	reader.Close()
	return reader.Prompt()
}

func TestSpellings(t *testing.T) {
	checkGroups(t, []group{
		{"hi", []request{
			chat(`{"messages":[{"role":"user","content":"hi"}]}`),
			chat(" \n{ \"messages\" :\t[ { \"role\" : \"user\" , \"content\" : \"hi\" } ] } \r\n"),
			chat("\xef\xbb\xbf" + `{"messages":[{"content":"hi","role":"user"}]}`),
			chat(`{"\u006dessages":[{"r\u006fle":"\u0075ser","content":"\u0068i"}]}`),
			chat(`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`),
			chat(`{"messages":[{"role":"user","content":[{"text":"hi","type":"text"}]}]}`),
			chat(`{"messages":[{"role":"user","content":["hi"]}]}`),
			chat(`{"messages":[{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"hi"},{"type":"text","text":null}]}]}`),
			chat(`{"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}],"name":"x"}]}`),
			chat(`{"messages":[],"messages":[{"role":"system","role":"user","content":"ho","content":"hi"}]}`),
			chat(`{"messages":[{"role":"user","content":[{"type":"text","text":"ho","text":"hi"}]}]}`),
			chat(`{"Messages":[1],"messages":[{"role":"user","content":"hi","Content":"x"}],"MESSAGES":2}`),
			chat(`{"stream":true,"temperature":0.5,"user":"u","metadata":{"a":[{"messages":"}]"}]},"response_format":{"type":"json_object"},` +
				`"stop":["\"","\\"],"seed":-1e5,"n":null,"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"stream_options":{}}`),
			chat(`{"messages":[{"role":"user","content":"hi"}],"tools":null,"functions":[],"model":null,"cache_salt":"","prompt_cache_key":null}`),
			chat(`{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}],"tools":[]}`),
			embed(`{"messages":[{"role":"user","content":"hi"}]}`),
			respond(`{"input":"hi"}`),
			respond(`{"input":"hi","instructions":null}`),
			respond(`{"instructions":"","input":[{"role":"user","content":"hi"}]}`),
			respond(`{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}]}`),
			anthropic(`{"max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`),
			anthropic(`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"system":[]}`),
			anthropic(`{"system":"","messages":[{"role":"user","content":[{"citations":null,"text":"hi","type":"text"}]}]}`),
			{pathMessages + "/count_tokens?beta=true", `{"messages":[{"role":"user","content":"hi"}]}`},
		}},
		{"ho", []request{chat(`{"messages":[{"role":"user","content":"ho"}]}`)}},
		{"a system hi", []request{
			chat(`{"messages":[{"role":"system","content":"hi"}]}`),
			chat(`{"messages":[{"role":"developer","content":"hi"}]}`),
		}},
		{"an assistant hi", []request{
			chat(`{"messages":[{"role":"assistant","content":"hi"}]}`),
			respond(`{"input":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi","annotations":[]}],"id":"m","status":"completed"}]}`),
			anthropic(`{"messages":[{"role":"assistant","content":"hi"}]}`),
			anthropic(`{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"hi"}]}]}`),
			chat(`{"messages":[{"role":"assistant","reasoning":"hm","reasoning_content":"hm","content":"hi"}]}`),
			respond(`{"input":[{"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},{"role":"assistant","content":"hi"}]}`),
		}},
		{"an unknown role", []request{chat(`{"messages":[{"role":"boss","content":"hi"}]}`)}},
		{"no role", []request{
			chat(`{"messages":[{"content":"hi"}]}`),
			chat(`{"messages":[{"role":null,"content":"hi"}]}`),
			chat(`{"messages":[{"role":"user","content":"hi","role":5}]}`),
		}},
		{"two messages", []request{
			chat(`{"messages":[{"role":"user","content":"h"},{"role":"user","content":"i"}]}`),
			respond(`{"input":[{"role":"user","content":"h"},{"role":"user","content":"i"}]}`),
		}},
		{"two parts", []request{
			chat(`{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}]}`),
			chat(`{"messages":[{"role":"user","content":"h\ni"}]}`),
			respond(`{"input":[{"role":"user","content":[{"type":"input_text","text":"h"},{"type":"input_text","text":"i"}]}]}`),
			anthropic(`{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}]}`),
		}},
		{"no content", []request{
			chat(`{"messages":[{"role":"user","content":""}]}`),
			chat(`{"messages":[{"role":"user","content":[]}]}`),
			chat(`{"messages":[{"role":"user","content":null}]}`),
			chat(`{"messages":[{"role":"user"}]}`),
			chat(`{"messages":[{"role":"user","content":"hi","content":null}]}`),
			chat(`{"messages":[{"role":"user","content":[{"type":"text","text":""}]}]}`),
			chat(`{"messages":[{"role":"user","content":[{"type":"later_invention","text":"x","data":"y"}]}]}`),
			respond(`{"input":[{"role":"user","content":[]}]}`),
			anthropic(`{"messages":[{"role":"user","content":""}]}`),
		}},
		{"no messages", []request{
			chat(`{}`), chat(`{"messages":null}`), chat(`{"messages":[]}`), chat(`{"messages":"hi"}`),
			chat(`{"messages":[1,"a",null,[{"role":"user","content":"hi"}]]}`),
			respond(`{"input":[]}`), anthropic(`{"system":""}`), complete(`{"prompt":""}`), complete(`{"prompt":[]}`),
			complete(`{"messages":[{"role":"user","content":"hi"}]}`), embed(`{"input":null}`), respond(`{"messages":[{"role":"user","content":"hi"}]}`),
		}},
		{"characters", []request{
			chat(`{"messages":[{"role":"user","content":"é€😀/\"\\\b\f\n\r\t\u0000\u007f"}]}`),
			chat(`{"messages":[{"role":"user","content":"\u00e9\u20AC\ud83D\uDE00\/\u0022\u005c\u0008\u000c\u000a\u000d\u0009\u0000` + "\x7f" + `"}]}`),
		}},
		{"escapes where it is cut, and a late role", []request{
			chat(`{"messages":[{"content":"words and\n \u0065sca\"pes \ud83d\ude00 é","role":"user"}],"x":"\""}`),
			chat(`{"messages":[{"role":"user","content":"words and\u000a esca\u0022p\u0065s 😀 \u00e9"}]}`),
		}},
		{"damaged characters", []request{
			chat(`{"messages":[{"role":"user","content":"a\ud800b\udc00c\ud800\ud800\u0041"}]}`),
			chat(`{"messages":[{"role":"user","content":"a` + "\xff" + `b` + "\x80" + `c` + "\xc3\xe2" + `A"}]}`),
			chat(`{"messages":[{"role":"user","content":"a\uFFFDb\ufffdc` + "\uFFFD\uFFFD" + `A"}]}`),
		}},
	})
}

func TestIdentities(t *testing.T) {
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	checkGroups(t, []group{
		{"none", []request{chat(`{` + hi + `}`), chat(`{` + hi + `,"model":5,"cache_salt":{},"prompt_cache_key":["a"]}`)}},
		{"a model", []request{
			chat(`{"model":"m",` + hi + `}`), chat(`{` + hi + `,"model":"m"}`), chat(`{"model":"x",` + hi + `,"model":"m"}`),
			chat(`{` + hi + `,"\u006dodel":"\u006d"}`), anthropic(`{` + hi + `,"model":"m"}`), respond(`{"input":"hi","model":"m"}`),
		}},
		{"another model", []request{chat(`{"model":"M",` + hi + `}`)}},
		{"a salt", []request{chat(`{"cache_salt":"m",` + hi + `}`)}},
		{"a cache key", []request{chat(`{"prompt_cache_key":"m",` + hi + `}`)}},
		{"all", []request{chat(`{"prompt_cache_key":"m",` + hi + `,"model":"m","cache_salt":"m"}`)}},
	})
}

func TestPrompts(t *testing.T) {
	checkGroups(t, []group{
		{"text", []request{
			complete(`{"prompt":"hi","suffix":"x"}`), complete(`{"prompt":["hi"]}`), complete(`{"prompt":["hi","ho"]}`),
			embed(`{"input":"hi"}`), embed(`{"input":["hi","ho"]}`), complete(`{"prompt":"ho","prompt":"hi"}`),
			complete(`{"input":"ho","prompt":"\u0068i"}`),
		}},
		{"other text", []request{complete(`{"prompt":"ho"}`)}},
		{"a chat", []request{chat(`{"messages":[{"role":"user","content":"hi"}]}`)}},
		{"a billing header is a prompt's text", []request{complete(`{"prompt":"x-anthropic-billing-header: a\nhi"}`)}},
		{"tokens", []request{
			complete(`{"prompt":[1,22,333]}`), complete(`{"prompt":[ 1 , 22,333 ]}`), complete(`{"prompt":[[1,22,333],[4]]}`),
			embed(`{"input":[1,22,333]}`), embed(`{"input":[[1,22,333]]}`),
		}},
		{"other tokens", []request{complete(`{"prompt":[1,22,334]}`)}},
		{"fewer tokens", []request{complete(`{"prompt":[1,22]}`)}},
		{"joined tokens", []request{complete(`{"prompt":[12,2,333]}`)}},
		{"nothing", []request{complete(`{"prompt":[[],[1]]}`), complete(`{"prompt":[{"a":1}]}`), complete(`{"prompt":5}`)}},
	})
}

func TestFronts(t *testing.T) {
	checkGroups(t, []group{
		{"a system prompt", []request{
			chat(`{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}`),
			chat(`{"messages":[{"role":"developer","content":"be brief"},{"role":"user","content":"hi"}]}`),
			respond(`{"instructions":"be brief","input":"hi"}`),
			respond(`{"input":[{"role":"user","content":"hi"}],"instructions":"be brief"}`),
			respond(`{"input":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}`),
			respond(`{"instructions":"x","input":"hi","instructions":"be brief"}`),
			anthropic(`{"system":"be brief","messages":[{"role":"user","content":"hi"}]}`),
			anthropic(`{"messages":[{"role":"user","content":"hi"}],"system":"be brief"}`),
			anthropic(`{"messages":[{"role":"user","content":"hi"}],"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}]}`),
			anthropic(`{"messages":[{"role":"user","content":"hi"}],"system":[{"type":"text","text":"be "},{"type":"text","text":"brief"}]}`),
			anthropic(`{"system":["x"],"messages":[{"role":"user","content":"hi"}],"system":[{"text":"x-anthropic-billing-header: cch=1;\nx","type":"text"},{"type":"text","text":"be brief"}]}`),
			chat(`{"messages":[{"role":"system","content":"x-anthropic-billing-header: cch=2;\nbe brief"},{"role":"user","content":"hi"}]}`),
			chat(`{"messages":[{"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header: cch=3;"},{"type":"text","text":"be brief"}]},{"role":"user","content":"hi"}]}`),
			anthropic(`{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}`),
			anthropic(`{"messages":[{"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header: 4"}]},{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}`),
		}},
		{"nearly a billing header", []request{chat(`{"messages":[{"role":"system","content":"x-anthropic-billing-heade"},{"role":"user","content":"hi"}]}`)}},
		{"nearly a billing header 2", []request{chat(`{"messages":[{"role":"system","content":"x-anthropic-billing-headeR: 1"},{"role":"user","content":"hi"}]}`)}},
		{"system after user", []request{chat(`{"messages":[{"role":"user","content":"hi"},{"role":"system","content":"be brief"}]}`)}},
		{"without", []request{
			chat(`{"messages":[{"role":"user","content":"hi"}]}`),
			respond(`{"system":"be brief","input":"hi"}`),
			anthropic(`{"instructions":"be brief","messages":[{"role":"user","content":"hi"}]}`),
		}},
	})
}

func TestToolCalls(t *testing.T) {
	const ask = `{"role":"user","content":"weather?"}`
	checkGroups(t, []group{
		{"a call and its result", []request{
			chat(`{"messages":[` + ask + `,{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"get","arguments":"{\"city\":\"Zürich\",\"n\":[1,2]}"}}]},{"role":"tool","tool_call_id":"c1","content":"sun"}]}`),
			chat(`{"messages":[` + ask + `,{"tool_calls":[{"function":{"arguments":"{ \"city\" : \"Z\\u00fcrich\",\n\"n\":[1, 2] }","name":"get"},"type":"function","id":"c2"}],"role":"assistant"},{"content":[{"type":"text","text":"sun"}],"tool_call_id":"c2","role":"tool"}]}`),
			chat(`{"messages":[` + ask + `,{"role":"assistant","content":"","function_call":{"name":"get","arguments":"{\"city\":\"Zürich\",\"n\":[1,2]}"}},{"role":"tool","content":"sun"}]}`),
			chat(`{"messages":[` + ask + `,{"role":"assistant","tool_calls":[{"function":{"name":"x"}}],"tool_calls":[{"function":{"name":"no","arguments":"{\"a\":1}","name":"get","arguments":{"city":"Zürich","n":[1,2]}}}]},{"role":"tool","content":"sun"}]}`),
			respond(`{"input":[` + ask + `,{"type":"function_call","call_id":"c","name":"get","arguments":"{\"city\":\"Zürich\",\"n\":[1,2]}"},{"type":"function_call_output","call_id":"c","output":"sun"}]}`),
			respond(`{"input":[` + ask + `,{"arguments":"{\"city\":\"Zürich\",\"n\":[1,2]}","name":"get","type":"function_call"},{"output":[{"type":"input_text","text":"sun"}],"call_id":"c","type":"function_call_output"}]}`),
			respond(`{"input":[` + ask + `,{"type":"reasoning","content":[{"type":"reasoning_text","text":"hm"}]},{"type":"function_call","name":"get","arguments":"{\"city\":\"Zürich\",\"n\":[1,2]}"},{"type":"item_reference","id":"x"},{"type":"function_call_output","output":"sun"}]}`),
			anthropic(`{"messages":[` + ask + `,{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"get","input":{"city":"Zürich","n":[1,2]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"sun"}]}]}`),
			anthropic(`{"messages":[` + ask + `,{"content":[{"id":"c","input":{ "city" : "Z\u00fcrich", "n":[ 1,2 ]},"name":"get","type":"tool_use"}],"role":"assistant"},{"content":[{"content":[{"text":"sun","type":"text"}],"is_error":false,"tool_use_id":"c","type":"tool_result"}],"role":"user"}]}`),
			anthropic(`{"messages":[` + ask + `,{"role":"assistant","content":[{"type":"tool_use","name":"x","input":{}}],"content":[{"type":"redacted_thinking","data":"xx"},{"type":"tool_use","name":"get","input":{"city":"Zürich","n":[1,2]}}]},{"role":"user","content":[{"type":"tool_result","content":"x","content":"sun"}]}]}`),
		}},
		{"text and two calls, then more", []request{
			chat(`{"messages":[` + ask + `,{"role":"assistant","content":"Well","tool_calls":[{"function":{"name":"a","arguments":"{}"}},{"function":{"name":"b","arguments":"[1]"}}]},{"role":"tool","content":""},{"role":"tool","content":"2\n3"},{"role":"user","content":"and?"}]}`),
			respond(`{"input":[` + ask + `,{"role":"assistant","content":"Well"},{"type":"function_call","name":"a","arguments":""},{"type":"function_call","name":"b","arguments":"nonsense"},{"type":"function_call_output"},{"type":"function_call_output","output":"2\n3"},{"role":"user","content":"and?"}]}`),
			respond(`{"input":[` + ask + `,{"type":"function_call","name":"a"},{"type":"function_call","name":"b","arguments":null},{"role":"assistant","content":"Well"},{"type":"function_call_output","output":null},{"type":"function_call_output","output":"2\n3"},{"role":"user","content":"and?"}]}`),
			respond(`{"input":[` + ask + `,{"type":"function_call","name":"a"},{"content":[{"type":"output_text","text":"Well"}],"role":"assistant","type":"message"},{"type":"function_call","name":"b","arguments":null},{"type":"function_call_output","output":[]},{"type":"function_call_output","output":"2\n3"},{"role":"user","content":"and?"}]}`),
			anthropic(`{"messages":[` + ask + `,{"role":"assistant","content":[{"type":"text","text":"Well"},{"type":"tool_use","name":"a","input":{}},{"type":"tool_use","name":"b"}]},{"role":"user","content":[{"type":"tool_result"},{"type":"tool_result","content":[{"type":"text","text":"2"},{"type":"text","text":"3"}]},{"type":"text","text":"and?"}]}]}`),
		}},
		{"without the calls", []request{
			chat(`{"messages":[` + ask + `,{"role":"assistant","content":"Well"},{"role":"tool","content":""},{"role":"tool","content":"2\n3"},{"role":"user","content":"and?"}]}`),
			chat(`{"messages":[` + ask + `,{"role":"assistant","content":"Well","tool_calls":[]},{"role":"tool","content":""},{"role":"tool","content":"2\n3"},{"role":"user","content":"and?"}]}`),
			chat(`{"messages":[` + ask + `,{"role":"assistant","content":"Well","tool_calls":null},{"role":"tool","content":""},{"role":"tool","content":"2\n3"},{"role":"user","content":"and?"}]}`),
		}},
		{"calls in another order", []request{
			chat(`{"messages":[` + ask + `,{"role":"assistant","content":"Well","tool_calls":[{"function":{"name":"b"}},{"function":{"name":"a"}}]},{"role":"tool","content":""},{"role":"tool","content":"2\n3"},{"role":"user","content":"and?"}]}`),
		}},
		{"other arguments", []request{
			chat(`{"messages":[` + ask + `,{"role":"assistant","tool_calls":[{"function":{"name":"get","arguments":"{\"city\":\"Zürich\",\"n\":[1,3]}"}}]},{"role":"tool","content":"sun"}]}`),
		}},
		{"a free-form call", []request{
			respond(`{"input":[` + ask + `,{"type":"custom_tool_call","name":"run","input":"ls \"a\""},{"type":"custom_tool_call_output","output":"b"}]}`),
			chat(`{"messages":[` + ask + `,{"role":"assistant","tool_calls":[{"function":{"name":"run","arguments":"{\"input\": \"ls \\\"a\\\"\"}"}}]},{"role":"tool","content":"b"}]}`),
		}},
	})
}

func TestMedia(t *testing.T) {
	wrap := func(parts string) string { return `{"messages":[{"role":"user","content":[` + parts + `]}]}` }
	items := func(parts string) string { return `{"input":[{"role":"user","content":[` + parts + `]}]}` }
	const see = `{"type":"text","text":"see"}`
	checkGroups(t, []group{
		{"an image", []request{
			chat(wrap(see + `,{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}`)),
			chat(wrap(see + `,{"image_url":{"detail":"high","url":"data:image\/png;base64,AA\u0041A"},"type":"image_url"}`)),
			chat(wrap(see + `,{"type":"image_url","image_url":{"url":"data:image/jpeg;charset=x;base64,AAAA"}}`)),
			chat(wrap(see + `,{"image_url":"data:image/png;base64,AAAA"}`)),
			respond(items(`{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,AAAA"}`)),
			anthropic(wrap(see + `,{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}`)),
			anthropic(wrap(see + `,{"source":{"data":"AAAA","media_type":"image/png","type":"base64"},"type":"image"}`)),
		}},
		{"another image", []request{chat(wrap(see + `,{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAB"}}`))}},
		{"an image first", []request{chat(wrap(`{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},` + see))}},
		{"two images", []request{chat(wrap(see + `,{"image_url":"data:;base64,AAAA"},{"image_url":"data:;base64,AAAA"}`))}},
		{"an image and no text", []request{chat(wrap(`{"image_url":"data:;base64,AAAA"}`))}},
		{"an address", []request{
			chat(wrap(see + `,{"type":"image_url","image_url":{"url":"https://a/b.png"}}`)),
			anthropic(wrap(see + `,{"type":"image","source":{"type":"url","url":"https://a/b.png"}}`)),
		}},
		{"an id that is vouched for", []request{
			chat(wrap(see + `,{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"},"uuid":"u"}`)),
			chat(wrap(see + `,{"type":"image_url","image_url":null,"uuid":"u"}`)),
		}},
		{"sound", []request{
			chat(wrap(see + `,{"type":"input_audio","input_audio":{"data":"UklG","format":"wav"}}`)),
			chat(wrap(see + `,{"type":"audio_url","audio_url":{"url":"data:audio/wav;base64,UklG"}}`)),
		}},
		{"a file", []request{
			chat(wrap(see + `,{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBE"}}`)),
			respond(items(`{"type":"input_text","text":"see"},{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,JVBE"}`)),
			anthropic(wrap(see + `,{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBE"}}`)),
		}},
		{"no media", []request{
			chat(wrap(see)), chat(wrap(see + `,{"type":"image_url"}`)), chat(wrap(see + `,{"type":"image_url","image_url":{"url":""}}`)),
			chat(wrap(see + `,{"type":"image_url","image_url":{"url":"x"},"image_url":null}`)),
		}},
		{"an image from a tool", []request{
			anthropic(wrap(`{"type":"tool_result","content":[{"type":"text","text":"here"},{"type":"image","source":{"data":"AAAA"}}]},{"type":"text","text":"see"}`)),
			chat(`{"messages":[{"role":"tool","content":"here"},{"role":"user","content":[{"image_url":"data:;base64,AAAA"}]},{"role":"user","content":"see"}]}`),
		}},
	})
}

func TestTools(t *testing.T) {
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	checkGroups(t, []group{
		{"a tool", []request{
			chat(`{` + hi + `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]}`),
			chat(`{"tools":[{"function":{"parameters":{ "type" : "object", "properties": {"\u0061":{"type":"str\u0069ng"}}}, "description":"d","name":"f","strict":null,"x":1},"type":"function","x":2}],` + hi + `}`),
			chat(`{"tools":[1],"tools":[{"function":{"name":"g","name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],` + hi + `}`),
			respond(`{"input":"hi","tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}]}`),
			anthropic(`{` + hi + `,"tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"a":{"type":"string"}}},"cache_control":{"type":"ephemeral"}}]}`),
			anthropic(`{` + hi + `,"tools":[{"input_schema":{"type":"object","properties":{"a":{"type":"string"}}},"type":"custom","description":"d","name":"f"}]}`),
		}},
		{"a strict tool", []request{
			chat(`{` + hi + `,"tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]}`),
			respond(`{"input":"hi","tools":[{"type":"function","strict":true,"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}]}`),
		}},
		{"its schema in another order", []request{
			chat(`{` + hi + `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"properties":{"a":{"type":"string"}},"type":"object"}}}]}`),
		}},
		{"another name", []request{
			chat(`{` + hi + `,"tools":[{"type":"function","function":{"name":"g","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]}`),
		}},
		{"name and description swapped", []request{chat(`{` + hi + `,"tools":[{"function":{"name":"d","description":"f"}}]}`)}},
		{"no parameters", []request{
			chat(`{` + hi + `,"tools":[{"function":{"name":"f","description":"d"}}]}`),
			chat(`{` + hi + `,"tools":[{"function":{"name":"f","description":"d","parameters":null}}]}`),
		}},
		{"an empty description", []request{chat(`{` + hi + `,"tools":[{"function":{"name":"f","description":""}}]}`)}},
		{"no description", []request{chat(`{` + hi + `,"tools":[{"function":{"name":"f"}}]}`)}},
		{"two tools", []request{chat(`{` + hi + `,"tools":[{"function":{"name":"f"}},{"function":{"name":"g"}}]}`)}},
		{"two tools in another order", []request{chat(`{` + hi + `,"tools":[{"function":{"name":"g"}},{"function":{"name":"f"}}]}`)}},
		{"a function", []request{
			chat(`{` + hi + `,"functions":[{"name":"f"}]}`), chat(`{"functions":[{"name":"f","parameters":null}],` + hi + `,"tools":[]}`),
		}},
		{"a function and a tool", []request{chat(`{` + hi + `,"functions":[{"name":"f"}],"tools":[{"function":{"name":"f"}}]}`)}},
		{"a server's tool", []request{
			respond(`{"input":"hi","tools":[{"type":"web_search","user_location":{"type":"approximate"},"search_context_size":"low"}]}`),
			respond(`{"input":"hi","tools":[{"search_context_size":"low","user_location":{ "type":"approximate"},"type":"web_search"}]}`),
		}},
		{"a server's tool otherwise", []request{respond(`{"input":"hi","tools":[{"type":"web_search","search_context_size":"high"}]}`)}},
		{"none", []request{
			chat(`{` + hi + `}`), chat(`{` + hi + `,"tools":[]}`), chat(`{` + hi + `,"tools":{}}`), chat(`{` + hi + `,"tools":"x","tool_choice":"none"}`),
			chat(`{` + hi + `,"tools":[{"function":{"name":"f"}}],"tools":null}`),
		}},
	})
}

func TestHasText(t *testing.T) {
	for _, c := range []struct {
		request request
		want    bool
	}{
		{chat(`{}`), false},
		{chat(`{"messages":[{"role":"user","content":""}],"model":"m"}`), false},
		{chat(`{"messages":[{"role":"user","content":" "}]}`), true},
		{chat(`{"messages":[{"role":"user","content":[{"image_url":"data:;base64,AAAA"}]}]}`), true},
		{complete(`{"prompt":[1]}`), true},
		{anthropic(`{"system":"x"}`), true},
	} {
		if got := readAll(t, c.request.path, c.request.body, Options{}).HasText; got != c.want {
			t.Errorf("%s: HasText = %v", c.request.body, got)
		}
	}
}

// A digest may have any bytes, also those that begin a mark.
func TestNextMessageSkipsDigests(t *testing.T) {
	mark := "\xffM" + strings.Repeat("\xff", markSize-2)
	text := []byte(mark + "hi" + mark + "you")
	first := NextMessage(text, 0)
	if want := len(mark) + 2; first != want || NextMessage(text, first) != len(text) {
		t.Errorf("messages at %d and %d, want at %d and no more in %d", first, NextMessage(text, first), want, len(text))
	}
}

func TestNextMessage(t *testing.T) {
	full := keyOf(t, chat(`{"messages":[{"role":"user","content":"é1"},{"role":"user","content":[{"image_url":"x"},"2"]},{"role":"tool"}]}`), Options{}).Text
	var ends []int
	for at := NextMessage([]byte(full), 0); at < len(full); at = NextMessage([]byte(full), at) {
		ends = append(ends, at)
	}
	for i, body := range []string{
		`{"messages":[{"role":"user","content":"é1"}]}`,
		`{"messages":[{"role":"user","content":"é1"},{"role":"user","content":[{"image_url":"x"},"2"]}]}`,
	} {
		want := keyOf(t, chat(body), Options{}).Text
		if i >= len(ends) || full[:ends[i]] != want {
			t.Errorf("message %d ends at %v, its text is %q of %q", i, ends, want, full)
		}
	}
	if len(ends) != 2 || strings.Count(full, "\xffM") != 3 {
		t.Errorf("ends at %v", ends)
	}
}
