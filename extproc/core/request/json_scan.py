"""Scans a whole JSON body: checks all of it, but builds the values of a few fields only.

The scan accepts strict JSON: it rejects numbers that only Python reads, such as `NaN`. In the
values that it skips it tolerates nesting beyond 200 levels (up to Python's own limit), numbers of
any length and lone surrogates. The inference server checks those.

mypyc does not compile this module, because msgspec creates classes at run time.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from extproc.core.request.json_document import Document, model_of, parse_document
from extproc.core.request.refusals import InvalidRequest

MAX_FIELD_BYTES = 65_536
"""Longer values of a scanned field are ignored, except the model's."""

_CHUNK_BYTES = 65_536
_ABSENT = msgspec.Raw(b"")


class _Scanned(msgspec.Struct):
    """The fields that the decoder keeps: the model and, in subclasses, others."""

    model: msgspec.Raw = msgspec.Raw(b"null")


def scan_fields(body: bytes, fields: Iterable[str]) -> tuple[str | None, Document]:
    """Return the model, and a document with the model and each of `fields`, None if absent.

    Raises InvalidRequest if the body is not a JSON object or its model is not valid.
    """
    names = frozenset(fields) - {"model"}
    try:
        scanned = _decoder(names).decode(body)
    except msgspec.DecodeError as problem:
        raise InvalidRequest(f"The request body is not valid JSON: {problem}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    _check_utf8(body)
    only_model = b'{"model":%b}' % bytes(scanned.model)
    document = parse_document(only_model, complete=True)
    model = model_of(only_model, document, complete=True)
    found: Document = {"model": model}
    for position, name in enumerate(sorted(names)):
        found[name] = _value(bytes(getattr(scanned, f"field{position}")))
    return model, found


def is_strict_object(body: bytes) -> bool:
    """Return True if the bytes are one JSON object. Its strings may contain invalid UTF-8."""
    try:
        _decoder(frozenset()).decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


@lru_cache(maxsize=64)
def _decoder(fields: frozenset[str]) -> msgspec.json.Decoder[Any]:
    """Return a decoder that keeps these fields as `field0`, `field1`, ... in sorted order."""
    names = {f"field{position}": name for position, name in enumerate(sorted(fields))}
    members = [(name, msgspec.Raw, _ABSENT) for name in names]
    scanned = msgspec.defstruct("_ScannedFields", members, bases=(_Scanned,), rename=names)
    return msgspec.json.Decoder(scanned)


def _value(raw: bytes) -> Any:
    """Return a field's value; None if the field is absent or too long."""
    if not raw or len(raw) > MAX_FIELD_BYTES:
        return None
    try:
        return parse_document(b'{"":%b}' % raw, complete=True)[""]
    except InvalidRequest:
        return None  # the scan accepts values that the parser does not


def _check_utf8(body: bytes) -> None:
    """Raise InvalidRequest unless the body is UTF-8.

    It is decoded in chunks, because its text can take four times the memory of its bytes.
    """
    start = 0 if not body.isascii() else len(body)
    while start < len(body):
        end = start + _CHUNK_BYTES
        try:
            start += utf_8_decode(body[start:end], "strict", end >= len(body))[1]
        except UnicodeDecodeError as problem:
            position = start + problem.start
            raise InvalidRequest(f"The request body is no UTF-8 at byte {position}.") from None
