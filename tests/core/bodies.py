"""Hypothesis strategies for request bodies: four APIs, any order of keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

text = st.text(max_size=12)
names = st.text(min_size=1, max_size=12)
plain = st.one_of(st.none(), st.booleans(), st.integers(), text)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)


@st.composite
def shuffled(draw: st.DrawFn, /, **fields: st.SearchStrategy[Any]) -> Json:
    """Draw an object with these keys in any order, and perhaps an irrelevant one."""
    keys = draw(st.permutations(sorted(fields)))
    made = {key: draw(fields[key]) for key in keys}
    if draw(st.booleans()):
        made[draw(st.sampled_from(["x", "metadata", "名前"]))] = draw(values)
    return made


media = st.one_of(
    shuffled(type=st.just("image_url"), image_url=shuffled(url=text, detail=text)),
    shuffled(type=st.just("image_url"), image_url=st.fixed_dictionaries({"url": text})),
    shuffled(type=st.just("input_audio"), input_audio=shuffled(data=text, format=text)),
    shuffled(type=st.just("input_image"), image_url=text),
    shuffled(
        type=st.just("image"),
        source=shuffled(
            type=st.sampled_from(["base64", "text", "file"]), media_type=text, data=text
        ),
    ),
)
medium_members = st.sampled_from(
    [
        *("image_url", "input_audio", "audio_url", "video_url", "file", "file_data", "file_url"),
        *("source", "image_embeds", "audio_embeds", "url", "data"),
    ]
)
schemas = shuffled(
    type=st.just("object"),
    properties=st.dictionaries(
        st.just("type") | medium_members,
        shuffled(type=st.sampled_from(["string", ["string", "null"]]), description=text),
        max_size=3,
    ),
)
"""Parameters of tools, with names that parts of messages have, too."""
cache_control = shuffled(type=st.just("ephemeral"), ttl=text)
tool_uses = shuffled(
    type=st.just("tool_use"),
    name=names,
    input=st.dictionaries(st.just("type") | medium_members, plain, max_size=3),
)
billing = shuffled(type=st.just("text"), text=st.just("x-anthropic-billing-header: cch=0;"))


def parts(kind: str) -> st.SearchStrategy[list[Json]]:
    """Draw the parts of a message: texts, images, recordings and calls of tools."""
    texts = shuffled(type=st.just(kind), text=text)
    marked = shuffled(type=st.just(kind), text=text, cache_control=cache_control)
    return st.lists(texts | marked | media | tool_uses, max_size=3)


roles = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
contents = st.one_of(text, parts("text"), st.none())
messages = st.lists(shuffled(role=roles, content=contents), max_size=4)
tools = st.lists(
    shuffled(
        type=st.just("function"),
        function=shuffled(name=names, description=text, parameters=values | schemas),
    ),
    max_size=2,
)
anthropic_tools = st.lists(
    shuffled(name=names, input_schema=schemas, cache_control=cache_control), max_size=2
)

chat = shuffled(messages=messages) | shuffled(messages=messages, tools=tools)

tokens = st.lists(st.integers(0, 200_000), max_size=6)
completions = shuffled(
    prompt=st.one_of(text, st.lists(text, max_size=3), tokens, st.lists(tokens, max_size=2))
)

response_items = st.one_of(
    shuffled(role=roles, content=text | parts("input_text")),
    shuffled(type=st.just("message"), role=roles, content=text | parts("input_text")),
    shuffled(type=st.just("function_call"), call_id=text, name=names, arguments=text),
    shuffled(type=st.just("function_call_output"), call_id=text, output=text),
)
responses = shuffled(input=text | st.lists(response_items, max_size=4)) | shuffled(
    input=text | st.lists(response_items, max_size=4), instructions=text
)

system_blocks = st.lists(shuffled(type=st.just("text"), text=text) | billing, max_size=3)
anthropic = st.one_of(
    shuffled(messages=messages),
    shuffled(system=text | system_blocks, messages=messages),
    shuffled(tools=anthropic_tools, system=text | system_blocks, messages=messages),
)

documents = st.one_of(chat, completions, responses, anthropic)

fields = st.sampled_from(
    [
        *("messages", "input", "prompt", "tools", "system", "instructions", "text", "input_ids"),
        *("user", "metadata", "cache_salt", "previous_response_id", "request_id", "store"),
    ]
)
members = st.sampled_from(
    [
        *("role", "content", "text", "function", "parameters", "input", "arguments", "properties"),
        *("url", "data", "cache_control", "user_id"),
    ]
)
words = st.sampled_from(["user", "system", "base64", "url", "image", "reasoning", "function_call"])


def typed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Draw an object that looks like a part of a message, with a `type` of any kind."""
    others = st.dictionaries(medium_members, inner, max_size=2)
    return st.builds(lambda members, kind: {**members, "type": kind}, others, words | inner)


def any_documents(*scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Draw a document with fields and members of the known APIs, and values of any type."""
    values = st.recursive(
        st.one_of(plain, words, *scalars),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(members | text, inner, max_size=3),
            typed(inner),
            typed(typed(inner)),
        ),
    )
    return st.dictionaries(fields, values, min_size=1, max_size=4)


def written(document: Json, *, compact: bool = True, ascii_only: bool = False) -> bytes:
    """Return the document as JSON."""
    separators = (",", ":") if compact else None
    indent = None if compact else 1
    return json.dumps(
        document, separators=separators, indent=indent, ensure_ascii=ascii_only
    ).encode()


@st.composite
def bodies(draw: st.DrawFn, documents: st.SearchStrategy[Json] = documents) -> bytes:
    """Draw a body with its model at any position."""
    items = list(draw(documents).items())
    items.insert(draw(st.integers(0, len(items))), ("model", draw(names)))
    return written(dict(items), compact=draw(st.booleans()), ascii_only=draw(st.booleans()))


def cuts(body: bytes) -> Iterator[bytes]:
    """Yield every beginning of a body, except the empty one and the whole body."""
    return (body[:length] for length in range(1, len(body)))
