"""Large bodies of which more is shown than is looked at.

To build everything that 8 MiB of JSON may hold takes seconds, in which nobody else is answered.
So a body of more than WHOLE bytes is read twice, unless there is little in it: all of it by a
parser that builds nothing but the value of `model`, and its beginning, up to some number of values
and of bytes, as the head of a cut body is read. What makes a prompt's prefix stands there.

The first reading is for strict JSON: of numbers that only Python reads (`NaN`) it makes an
invalid body. It lets pass what it skips where nobody could mean anything else: nesting beyond
200, though not beyond Python's own limit, numbers of any length, lone surrogates.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode

import msgspec

from extproc.core.body import Document, model_in_json, read_json
from extproc.core.errors import InvalidRequest

WHOLE = 131_072
"""Bytes: so much is always read value by value, which takes 30 ms at the worst."""

MOST_BYTES = 2**20
"""Read value by value: twice the text that is ever compared of a prompt."""

MOST_VALUES = 24_000
"""Texts, commas and brackets in what is read value by value: some 7 for a message of a chat, one
for a token id. To build them and to walk over them takes 15 ms at the worst."""

_BLANKS = b" \t\r\n"
_CHUNK = 65_536

_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?+\Z)'  # the last one may be cut
_VALUES = re.compile(
    rb'(?:[^",\[{]*+(?:%b|[,\[{])){0,%d}+[^",\[{]*+' % (_TEXT, MOST_VALUES), re.DOTALL
)
_NO_SIGNS = bytes(set(range(256)) - set(b",[{"))


class _Skimmed(msgspec.Struct):
    """All that is wanted of an object: everything else is checked and skipped."""

    model: msgspec.Raw = msgspec.Raw(b"null")


_SKIM = msgspec.json.Decoder(_Skimmed)


def read_large(head: bytes, *, complete: bool) -> tuple[str | None, Document, int]:
    """The model, the object, and the bytes of the head that the object was read from.

    Means what `read_json` and `model_in_json` mean, and raises the same, for bodies of any size.
    """
    bare = head.lstrip(_BLANKS)
    part = bare[: _end(bare)]
    if len(part) == len(bare):
        document = read_json(head, complete=complete)
        return model_in_json(head, document, complete=complete), document, len(head)
    document = read_json(part, complete=False)
    try:
        document["model"] = model = model_in_large(head)
    except InvalidRequest:
        if complete:
            raise
        # Cut, in all likelihood.
        model = model_in_json(part, document, complete=False)
    return model, document, len(part)


def _end(head: bytes) -> int:
    """How much of it may be read value by value."""
    end = min(len(head), MOST_BYTES)
    if len(head[:end].translate(None, _NO_SIGNS)) <= MOST_VALUES:
        return end
    values = _VALUES.match(head, 0, end)  # those within texts do not count
    return values.end() if values else 0


def model_in_large(body: bytes) -> str | None:
    """The model that all of a body names, of which nothing else is built. Raises InvalidRequest."""
    try:
        skimmed = bytes(_SKIM.decode(body).model)
    except msgspec.DecodeError as problem:
        raise InvalidRequest(f"The request body is not valid JSON: {problem}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    _check_utf8(body)
    alone = b'{"model":%b}' % skimmed
    return model_in_json(alone, read_json(alone, complete=True), complete=True)


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
        _SKIM.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
