"""Reads the model and the other fields of a JSON body of any size, complete or cut.

Small bodies, and large ones with few values, are parsed in full (`json_document`). Of other bodies
two readings are combined:

- their beginning, as far as the limits go (`json_limits`), is parsed with every value. The
  beginning of a prompt, which decides the routing, is there.
- all of them is scanned for the model and some other fields (`json_scan`).

A byte order mark before the object is skipped, as in Python's `json.loads`, which servers use.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable
from typing import NamedTuple

from extproc.core.request.json_document import Document, model_of, parse_document
from extproc.core.request.json_limits import (
    ALWAYS_PARSED_BYTES,
    MAX_PARSED_BYTES,
    parsed_length,
)
from extproc.core.request.json_scan import scan_fields
from extproc.core.request.refusals import InvalidRequest
from extproc.core.request.session import CACHE_SALT

_BEGINNING_BYTES = 65_536
_BLANKS = b" \t\r\n"


class JsonBody(NamedTuple):
    """The content of a JSON body that the sidecar has read."""

    model: str | None
    """The model that the body names; None if it names none so far."""

    document: Document
    """The parsed fields, in the body's order. If the body was cut, the last one may be cut."""

    parsed_bytes: int
    """Bytes from which the document was parsed."""


def read_json_body(head: bytes, *, complete: bool, fields: Iterable[str] = ()) -> JsonBody:
    """Read a body, or its first part if it is not `complete`.

    In a complete body, `cache_salt` and `fields` are found in any position. Raises InvalidRequest
    if the body is not a JSON object or its model is not valid.
    """
    if head.startswith(BOM_UTF8):
        unmarked = head[len(BOM_UTF8) :]
        read = _read_unmarked(unmarked, complete=complete, fields=fields)
        return read._replace(parsed_bytes=read.parsed_bytes + len(BOM_UTF8))
    return _read_unmarked(head, complete=complete, fields=fields)


def _read_unmarked(head: bytes, *, complete: bool, fields: Iterable[str]) -> JsonBody:
    """Read a body without a byte order mark."""
    if len(head) <= ALWAYS_PARSED_BYTES:
        document = parse_document(head, complete=complete)
        return JsonBody(model_of(head, document, complete=complete), document, len(head))
    bare = head.lstrip(_BLANKS)
    start = len(head) - len(bare)
    return read_within(head, start, start + parsed_length(bare), complete=complete, fields=fields)


def read_within(
    head: bytes, start: int, end: int, *, complete: bool, fields: Iterable[str] = ()
) -> JsonBody:
    """Read a body of which only the bytes from `start` to `end` may be parsed with every value."""
    if end >= len(head):
        document = parse_document(head, complete=complete)
        return JsonBody(model_of(head, document, complete=complete), document, len(head))
    beginning = head[start:end]
    document = parse_document(beginning, complete=False)
    try:
        model, scanned = scan_fields(head, (*fields, CACHE_SALT))
    except InvalidRequest:
        if complete:
            raise
        # Most likely the head is cut, and the scan needs all of it.
        return JsonBody(model_of(beginning, document, complete=False), document, len(beginning))
    found = {name: value for name, value in scanned.items() if value is not None}
    return JsonBody(model, _joined(document, found), len(beginning))


def read_beginning(body: bytes) -> JsonBody | None:
    """Read the first 64 KiB of a complete body; None if that is no faster than reading all of it.

    The model is certain only after `with_rest`.
    """
    # In a larger body the values would have to be counted before the scan.
    if not ALWAYS_PARSED_BYTES < len(body) <= MAX_PARSED_BYTES:
        return None
    return read_json_body(body[:_BEGINNING_BYTES], complete=False)


def with_rest(beginning: JsonBody, body: bytes, fields: Iterable[str]) -> JsonBody | None:
    """Return a body's beginning with the fields of a scan of all of it; None if the model differs.

    Absent fields are in the document as None. If a field occurs twice, the first may remain.
    """
    model, scanned = scan_fields(body, (*fields, CACHE_SALT))
    if model is None or model != beginning.model:
        return None
    return beginning._replace(document=_joined(beginning.document, scanned))


def _joined(document: Document, scanned: Document) -> Document:
    """Return a cut document with the scanned fields. Its last field stays last: it may be cut."""
    return {**scanned, **{name: value for name, value in document.items() if name not in scanned}}
