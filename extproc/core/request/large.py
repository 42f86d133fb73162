"""Large bodies of which more is shown than is looked at.

To build everything that 8 MiB of JSON may hold takes seconds, in which nobody else is answered.
So a body of more than WHOLE bytes is read twice, unless there is little in it: all of it by a
parser that builds nothing but the value of `model`, and its beginning, up to some number of values
and of bytes, as the head of a cut body is read. What makes a prompt's prefix stands there.

Text in base64, as images are written, is read fast and holds no values: it does not count towards
the bytes that are read value by value, so that what stands behind an image is read, too.

The first reading is for strict JSON: of numbers that only Python reads (`NaN`) it makes an
invalid body. It lets pass what it skips where nobody could mean anything else: nesting beyond
200, though not beyond Python's own limit, numbers of any length, lone surrogates.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from extproc.core.request.body import Document, model_in_json, read_json
from extproc.core.request.refusals import InvalidRequest
from extproc.core.request.session import SALT

WHOLE = 131_072
"""Bytes: so much is always read value by value, which takes 30 ms at the worst."""

MOST_BYTES = 2**20
"""Read value by value, beside base64: twice the text that is ever compared of a prompt."""

MOST_VALUES = 24_000
"""Texts, commas and brackets in what is read value by value: some 7 for a message of a chat, one
for a token id. To build them and to walk over them takes 15 ms at the worst."""

LONGEST_FIELD = 65_536
"""Bytes of a field, beside the prompt, that is read from anywhere in a large body."""

_PIECE = 16_384
"""Bytes that count as base64 as a whole or not at all."""

_NOT_IN_BASE64 = (b" ", b'"', b"\\", b",", b"[", b"{", b"\n")
_NUMBER = b"0123456789+-.eE"
_BLANKS = b" \t\r\n"
_CHUNK = 65_536

_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?+\Z)'  # the last one may be cut
_VALUES = re.compile(
    rb'(?:[^",\[{]*+(?:%b|[,\[{])){0,%d}+[^",\[{]*+' % (_TEXT, MOST_VALUES), re.DOTALL
)
_NO_SIGNS = bytes(set(range(256)) - set(b",[{"))


_NO_VALUE = msgspec.Raw(b"")


class _Skimmed(msgspec.Struct):
    """All that is wanted of an object: everything else is checked and skipped."""

    model: msgspec.Raw = msgspec.Raw(b"null")


@lru_cache(maxsize=64)
def _skimmer(fields: frozenset[str] = frozenset()) -> msgspec.json.Decoder[Any]:
    """A decoder that also wants these fields, by their places in the sorted list."""
    names = {f"field{place}": name for place, name in enumerate(sorted(fields))}
    wanted = [(name, msgspec.Raw, _NO_VALUE) for name in names]
    skimmed = msgspec.defstruct("_Skimmed", wanted, bases=(_Skimmed,), rename=names)
    return msgspec.json.Decoder(skimmed)


def read_large(
    head: bytes, *, complete: bool, fields: Iterable[str] = ()
) -> tuple[str | None, Document, int]:
    """The model, the object, and the bytes of the head that the object was read from.

    Means what `read_json` and `model_in_json` mean, and raises the same, for bodies of any size.
    `cache_salt` and `fields` are read wherever they stand in a body that is complete.
    """
    bare = head.lstrip(_BLANKS)
    part = bare[: _end(bare)]
    if len(part) == len(bare):
        document = read_json(head, complete=complete)
        return model_in_json(head, document, complete=complete), document, len(head)
    document = read_json(part, complete=False)
    try:
        model, known = skimmed(head, fields)
    except InvalidRequest:
        if complete:
            raise
        # Cut, in all likelihood.
        return model_in_json(part, document, complete=False), document, len(part)
    found = {name: value for name, value in known.items() if value is not None}
    return model, completed(document, found), len(part)


def completed(document: Document, known: Document) -> Document:
    """Return a cut document with the fields that are known otherwise, its last field still last."""
    return {**known, **{name: value for name, value in document.items() if name not in known}}


def _end(head: bytes) -> int:
    """How much of it may be read value by value."""
    end, signs = _extent(head)
    if signs <= MOST_VALUES:
        return end
    end = min(len(head), MOST_BYTES)
    values = _VALUES.match(head, 0, end)  # those within texts do not count
    return values.end() if values else 0


def _extent(head: bytes) -> tuple[int, int]:
    """Where the bytes end that may be read, base64 left out, and the signs of values among them."""
    if len(head) <= MOST_BYTES:
        return len(head), len(head.translate(None, _NO_SIGNS))
    left, signs = MOST_BYTES, 0
    for start in range(0, len(head), _PIECE):
        piece = head[start : start + _PIECE]
        if _is_base64(piece):
            continue
        signs += len(piece.translate(None, _NO_SIGNS))
        left -= len(piece)
        if left <= 0 or signs > MOST_VALUES:
            return min(len(head), start + _PIECE), signs
    return len(head), signs


def _is_base64(piece: bytes) -> bool:
    """Whether it may stand within base64. A number may not: it takes long to read."""
    if any(sign in piece for sign in _NOT_IN_BASE64):
        return False
    return piece.isascii() and bool(piece.strip(_NUMBER))


def model_in_large(body: bytes) -> str | None:
    """The model that all of a body names, of which nothing else is built. Raises InvalidRequest."""
    return skimmed(body)[0]


def skimmed(body: bytes, fields: Iterable[str] = ()) -> tuple[str | None, Document]:
    """The model, and the values of it, of `cache_salt` and of these fields, None where one is not.

    Of the rest of the body nothing is built. Raises InvalidRequest for what is no request.
    """
    names = frozenset((*fields, SALT)) - {"model"}
    try:
        found = _skimmer(names).decode(body)
    except msgspec.DecodeError as problem:
        raise InvalidRequest(f"The request body is not valid JSON: {problem}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    _check_utf8(body)
    alone = b'{"model":%b}' % bytes(found.model)
    model = model_in_json(alone, read_json(alone, complete=True), complete=True)
    known: Document = {"model": model}
    for place, name in enumerate(sorted(names)):
        known[name] = _value(bytes(getattr(found, f"field{place}")))
    return model, known


def _value(raw: bytes) -> Any:
    """The value of a field; None where there is none, or a very long one."""
    if not raw or len(raw) > LONGEST_FIELD:
        return None
    try:
        return read_json(b'{"":%b}' % raw, complete=True)[""]
    except InvalidRequest:
        return None  # what is lenient with fields that it skips need not read them


def _check_utf8(body: bytes) -> None:
    """In pieces: a text of all of it may take four times its memory."""
    start = 0 if not body.isascii() else len(body)
    while start < len(body):
        end = start + _CHUNK
        try:
            start += utf_8_decode(body[start:end], "strict", end >= len(body))[1]
        except UnicodeDecodeError as problem:
            place = start + problem.start
            raise InvalidRequest(f"The request body is no UTF-8 at byte {place}.") from None


def is_strict_object(body: bytes) -> bool:
    """Whether it is all of a JSON object; texts may hold what is no UTF-8."""
    try:
        _skimmer().decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
