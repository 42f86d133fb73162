"""Bodies of the largest size that Envoy sends whole, each hard for another part of a parser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

SIZE = 8 * 2**20
"""Bytes: `request_body_buffer_limit` of envoy.yaml."""

_MESSAGE = b'{"role":"user","content":"What of [it], {you}? \\"No\\" idea.\\n"},'


class Large(NamedTuple):
    """One kind of body."""

    name: str
    make: Callable[[bytes], bytes]
    """The function from the model's name to the body."""
    outcome: str = "routed"
    path: str = "/v1/completions"


def _fill(unit: bytes, room: int = 200) -> bytes:
    return unit * ((SIZE - room) // len(unit))


def _prompt(name: str, value: Callable[[], bytes], outcome: str = "routed") -> Large:
    return Large(name, lambda model: b'{"model":"%b","prompt":%b}' % (model, value()), outcome)


def _list(name: str, unit: bytes) -> Large:
    return _prompt(f"list of {name}", lambda: b"[%b0]" % _fill(unit))


def _text(name: str, unit: bytes) -> Large:
    return _prompt(f"text of {name}", lambda: b'"%b"' % _fill(unit))


def _members(name: str, unit: bytes) -> Large:
    return Large(name, lambda model: b'{%b"model":"%b"}' % (_fill(unit), model))


def _messages(name: str, unit: bytes) -> Large:
    """Return a body as OpenAI's client for Python writes it, with the model after the messages."""
    return Large(
        f"messages: {name}",
        lambda model: b'{"messages":[%b{}],"model":"%b"}' % (_fill(unit), model),
        path="/v1/chat/completions",
    )


def large_bodies() -> Iterator[Large]:
    """Yield all kinds of body."""
    yield from _lists()
    yield from _texts()
    yield from _objects()
    yield from _media()
    yield from _broken()


def _lists() -> Iterator[Large]:
    yield _list("empty lists", b"[],")
    yield _list("empty objects", b"{},")
    yield _list("small objects", b'{"a":1},')
    yield _list("lists 150 deep", b"[" * 150 + b"]" * 150 + b",")
    yield _list("empty texts", b'"",')
    yield _list("letters", b'"a",')
    yield _list("digits", b"1,")
    yield _list("token ids", b"128000,")
    yield _list("numbers of 25 digits", b"1234567890123456789012345,")
    yield _list("numbers of 4,000 digits", b"9" * 4000 + b",")
    yield _list("floats", b"1.5e-7,")
    yield _list("long floats", b"0." + b"123456789" * 100 + b",")
    yield _list("nulls", b"null,")
    yield _list("objects with a model", b'{"model":"x"},')


def _texts() -> Iterator[Large]:
    yield _text("letters", b"a")
    yield _text("line breaks", b"\\n")
    yield _text("backslashes", b"\\\\")
    yield _text("quotes", b'\\"')
    yield _text("escaped letters", b"\\u4e16")
    yield _text("escaped surrogates", b"\\ud83d\\ude00")
    yield _text("keys", b'\\"model\\":')
    for character in ("é", "世", "😀", "a😀"):
        yield _text(character, character.encode())
    yield _prompt("blanks", lambda: _fill(b" ") + b"1")
    yield Large("leading blanks", lambda model: _fill(b" ") + b'{"model":"%b"}' % model)


def _objects() -> Iterator[Large]:
    yield _prompt("one long key", lambda: b'{"%b":1}' % _fill(b"k"))
    yield _members("one key repeated", b'"a":1,')
    yield _members("the model repeated", b'"model":"x",')
    yield _members("the model in escapes", b'"mod\\u0065l":"x",')
    yield Large(
        "many keys",
        lambda model: (
            b'{%b"model":"%b"}' % (b"".join(b'"%d":1,' % i for i in range(750_000)), model)
        ),
    )
    yield Large(
        "models in objects, then the model",
        lambda model: b'{"x":[%b0],"model":"%b"}' % (_fill(b'{"model":"x"},'), model),
    )
    yield Large(
        "lists 150 deep around the model",
        lambda model: (
            b'{"x":[%b0],"model":"%b","y":[%b0]}'
            % ((half := _fill(b"[" * 150 + b"]" * 150 + b",", SIZE // 2)), model, half)
        ),
    )
    yield _messages("of users", _MESSAGE)
    yield _messages("empty", b"{},")
    yield _messages("of tools", b'{"role":"tool"},')
    yield _messages("of the system", b'{"role":"system","content":""},')
    yield _messages("one long", b'{"role":"user","content":"%b"},' % _fill(b"word, ", 400))
    yield _messages("parts", b'{"role":"user","content":[%b{}]},' % _fill(b'{"text":"a"},', 400))


def _media() -> Iterator[Large]:
    """Yield bodies with images and other long strings, which are read to their ends."""
    image = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}'
    yield _messages("one image", b'{"role":"user","content":[%b]},' % (image % _fill(b"QUJD", 400)))
    small = image % (b"QUJD" * 5_000) + b","
    yield _messages(
        "many images", b'{"role":"user","content":[%b{}]},' % (small * ((SIZE - 400) // len(small)))
    )
    yield _prompt("many prompts", lambda: b"[%b0]" % _fill(b'"%b",' % (b"a" * 1_000)))
    yield Large(
        "a long cache_salt",
        lambda model: b'{"model":"%b","prompt":"a","cache_salt":"%b"}' % (model, _fill(b"a")),
    )


def _broken() -> Iterator[Large]:
    bad = "invalid_request"
    yield _prompt("lists nested without end", lambda: b"[" * (SIZE // 2) + b"]" * (SIZE // 2), bad)
    yield _prompt("bad syntax at the end", lambda: b"[%bx]" % _fill(b"1,"), bad)
    yield _prompt("bad UTF-8 at the end", lambda: b'"%b\xff"' % _fill(b"a"), bad)
    yield _prompt("bad UTF-8 after wide letters", lambda: b'"%b\xff"' % _fill("😀".encode()), bad)
    yield _members("a model that is not a string", b'"model":7,')._replace(
        make=lambda model: b'{"model":"%b",%b"model":7}' % (model, _fill(b'"a":1,')), outcome=bad
    )
    yield Large("no model", lambda _: b'{"x":[%b0]}' % _fill(b"[],"), bad)
    yield Large("a long model", lambda model: b'{"model":"%b"}' % _fill(b"m"), "model_not_found")
