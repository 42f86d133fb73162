"""Bodies that are hard to parse, and random changes to them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

HEAD_BYTES = 65_536
"""The most that Envoy sends of a body that is larger than its buffer."""

CORPUS = Path(__file__).parents[1] / "corpus" / "bodies"

_HI = [{"role": "user", "content": "hi"}]
_FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nllama\r\n--XX--\r\n'
)


def _json(**fields: object) -> bytes:
    return json.dumps({"model": "llama", **fields}).encode()


def _with(value: bytes) -> bytes:
    """Return a valid request with this text as the value of an unknown field."""
    return (
        b'{"model": "llama", "x": ' + value + b', "messages": [{"role": "user", "content": "a"}]}'
    )


GOOD = [
    _json(messages=_HI),
    _json(messages=[{"role": "system", "content": "be kind"}, *_HI], stream=True),
    _json(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]),
    _json(prompt=["a", "b"]),
    _json(prompt=[1, 2, 3]),
    _json(input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]),
    _json(system=[{"type": "text", "text": "s"}], messages=_HI),
    _json(messages=[{"role": "user", "content": "\u540d\U0001f600" * 40}]),
    b'{"messages": [{"role": "user", "content": "' + b"x" * 20_000 + b'"}], "model": "qwen"}',
    _FORM,
]

TRAPS = [
    b"",
    b" " * HEAD_BYTES,
    b"[" * HEAD_BYTES,
    b'{"a":' * (HEAD_BYTES // 5),
    _with(b"[" * 20_000 + b"]" * 20_000),
    _with(b"9" * 5_000),
    _with(b"9" * 60_000),
    _with(b"-" + b"0" * 5_000),
    _with(b"1e" + b"9" * 5_000),
    _with(b"0." + b"1" * 60_000),
    _with(b"NaN"),
    _with(b"-Infinity"),
    _with(b'"\\ud800"'),
    _with(b'"\\ud83d\\ude00"'),
    _with(b'"\xff\xfe"'),
    _with(b'"\xed\xa0\x80"'),
    _with(b'"' + b"\\u0000" * 9_000 + b'"'),
    _with(b'"' + b"\\" * 60_000 + b'"'),
    _with(b"{" + b'"k":1,' * 10_000 + b'"k":1}'),
    _with(b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(5_000)) + b"}"),
    b'{"model": "\\ud800", "messages": []}',
    b'{"model": "llama", "model": "qwen", "model": 7}',
    b'{"mod\\u0065l": "llama", "prompt": "a"}',
    _json(messages=_HI).decode().encode("utf-16"),
    _json(messages=_HI).decode().encode("utf-32"),
    b"\xef\xbb\xbf" + _json(messages=_HI),
    _json(messages=[{"role": "user", "content": "\ud800"}]),
    _json(messages=[{"role": "user", "content": [{"type": "text", "text": None}] * 2_000}]),
    _json(messages=[{}] * 10_000),
    _json(messages=[[[[[]]]]]),
    _json(
        tools=[{"properties": {"type": {}, "source": {"type": ["string", "null"]}}}], messages=_HI
    ),
    _json(prompt=[[[1]]] * 5_000),
    _json(prompt=[10**30, -1, True, None, 1.5]),
    _json(prompt=list(range(9_000))),
    _FORM.replace(b"XX", b"X" * 200),
    b"--XX\r\n" + b'Content-Disposition: form-data; name="a"\r\n\r\n\r\n--XX\r\n' * 1_000,
    b"--XX\r\nContent-Disposition: form-data; " + b'a="' * 20_000,
    b"--XX\r\nContent-Disposition: form-data; name=" + b'"\\' * 20_000,
    b"--XX" * 16_000,
]

_TOKENS = [
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"\r\n", b"\x00", b"\xff", b"\xed\xa0\x80"),
    *(b"\\ud800", b"\\u0000", b"NaN", b"1e999", b"-", b"9" * 5_000, b"[" * 300, b'{"a":' * 300),
    *(b'"model"', b'"model": 7', b'"model": "qwen"', b'"messages"', b'"content"', b"null", b"--XX"),
]


def seeds() -> list[bytes]:
    """Return the bodies that fuzzing starts with."""
    found = [path.read_bytes() for path in sorted(CORPUS.glob("*")) if path.is_file()]
    return [*GOOD, *TRAPS, *found]


def mutated(rng: Random, seeds: list[bytes]) -> bytes:
    """Return one of the bodies with a few random changes, often cut short."""
    body = bytearray(rng.choice(GOOD if rng.random() < 0.4 else seeds)[:HEAD_BYTES])
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randint(0, len(body))
        until = at + rng.choice((0, 1, 1, 4, 40))
        change = rng.randrange(5)
        if change == 0:
            body[at:until] = rng.choice(_TOKENS)
        elif change == 1:
            del body[at:until]
        elif change == 2:
            body[at:at] = body[at:until] * rng.choice((1, 2, 50))
        elif change == 3:
            other = rng.choice(seeds)
            body[at:] = other[rng.randint(0, len(other)) :]
        elif at < len(body):
            body[at] = rng.randrange(256)
    if rng.random() < 0.3:
        del body[rng.randint(0, len(body)) :]
    return bytes(body[:HEAD_BYTES])
