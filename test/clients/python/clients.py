"""Calls a gateway with the client libraries that people use, as their documentation shows, and prints a JSON
line for each call: {"call", "group", "streamed", "text", "cached"}. Calls are made one after the other.

clients.py homes URL     conversations, in every library and dialect, then many cache keys
clients.py refused URL   what the libraries make of a refusal
"""

import json
import sys

import anthropic
import openai
from langchain_openai import ChatOpenAI

MODEL = "tiny"
QUESTION = "Which families are happy?"


def system(conversation):
    return f"You are assistant number {conversation}. " + "All happy families are alike. " * 60


def say(call, group, text, streamed=False, cached=None):
    print(json.dumps({"call": call, "group": group, "streamed": streamed, "text": text, "cached": cached}), flush=True)


def openai_chat(client, group, messages):
    r = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
    say("openai chat", group, r.choices[0].message.content, cached=r.usage.prompt_tokens_details.cached_tokens)
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=4, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    say("openai chat", group, text, streamed=True, cached=chunks[-1].usage.prompt_tokens_details.cached_tokens)


def openai_responses(client, group, instructions, question):
    r = client.responses.create(model=MODEL, instructions=instructions, input=question, max_output_tokens=4, temperature=0)
    say("openai responses", group, r.output_text, cached=r.usage.input_tokens_details.cached_tokens)
    with client.responses.stream(
            model=MODEL, instructions=instructions, input=question, max_output_tokens=4, temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    say("openai responses", group, text, streamed=True)


def openai_completions(client, group, prompt):
    r = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
    say("openai completions", group, r.choices[0].text)
    stream = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0, stream=True)
    say("openai completions", group, "".join(c.choices[0].text for c in stream), streamed=True)


def anthropic_messages(client, group, instructions, question):
    messages = [{"role": "user", "content": question}]
    r = client.messages.create(model=MODEL, system=instructions, messages=messages, max_tokens=4)
    say("anthropic messages", group, "".join(b.text for b in r.content if b.type == "text"))
    blocks = [{"type": "text", "text": instructions, "cache_control": {"type": "ephemeral"}}]
    with client.messages.stream(model=MODEL, system=blocks, messages=messages, max_tokens=4) as stream:
        text = "".join(stream.text_stream)
    say("anthropic messages", group, text, streamed=True)


def langchain_chat(url, group, instructions, question):
    for responses in (False, True):
        chat = ChatOpenAI(
            model=MODEL, base_url=url + "/v1", api_key="none", max_tokens=4, temperature=0, max_retries=0, use_responses_api=responses)
        messages = [("system", instructions), ("human", question)]
        name = "langchain responses" if responses else "langchain chat"
        say(name, group, chat.invoke(messages).text)
        say(name, group, "".join(chunk.text for chunk in chat.stream(messages)), streamed=True)


def homes(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    for conversation in range(4):
        group = f"conversation {conversation}"
        messages = [{"role": "system", "content": system(conversation)}, {"role": "user", "content": QUESTION}]
        openai_chat(client, group, messages)
        openai_responses(client, group, system(conversation), QUESTION)
        anthropic_messages(claude, group, system(conversation), QUESTION)
        langchain_chat(url, group, system(conversation), QUESTION)
        # The conversation goes on. Its beginning, which makes its key, is what it was.
        openai_chat(client, group, messages + [{"role": "assistant", "content": "All."}, {"role": "user", "content": "Alike?"}])
        openai_completions(client, f"completion {conversation}", system(conversation))

    messages = [{"role": "user", "content": system(0)}]
    for n in range(16):
        for how, options in (("prompt_cache_key", {"prompt_cache_key": f"tenant-{n}"}),
                             ("header", {"extra_headers": {"X-Amzn-SageMaker-Prefix-Aware-Id": f"tenant-{n}"}})):
            for _ in range(2):
                r = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1, **options)
                say(how, f"tenant {n}", r.choices[0].finish_reason)

    # The engine's own errors come as they are.
    try:
        client.chat.completions.create(model="unknown", messages=messages)
    except openai.NotFoundError as e:
        say("unknown model", "unknown model", e.body["message"])


def refused(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": QUESTION}]
    for call, function in {
        "openai": lambda: client.chat.completions.create(model=MODEL, messages=messages),
        "openai streamed": lambda: client.chat.completions.create(model=MODEL, messages=messages, stream=True),
        "anthropic": lambda: claude.messages.create(model=MODEL, messages=messages, max_tokens=1),
        "langchain": lambda: ChatOpenAI(model=MODEL, base_url=url + "/v1", api_key="none", max_retries=0).invoke(QUESTION),
    }.items():
        try:
            function()
            say(call, "no error", "")
        except (openai.APIStatusError, anthropic.APIStatusError) as e:
            body = e.body.get("error", e.body)  # the openai package takes the outer object away
            kind = "rate limit" if isinstance(e, (openai.RateLimitError, anthropic.RateLimitError)) else "other"
            say(call, f"{kind} {e.status_code}", f"{body['code']}, retry after {e.response.headers.get('retry-after')}")


if __name__ == "__main__":
    {"homes": homes, "refused": refused}[sys.argv[1]](sys.argv[2])
