"""Finds fields in multipart forms, complete or cut anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from extproc.core.request.model_name import invalid_model
from extproc.core.request.refusals import InvalidRequest

MAX_PARTS = 1000
"""Parts of a form that are searched. Real forms have a few; the limit bounds the work."""

_MAX_PART_HEADER_BYTES = 2048

_LINE_END = b"\r\n"
_HEADERS_END = b"\r\n\r\n"
_DISPOSITION = re.compile(rb"^content-disposition:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
# A semicolon inside quotes does not end a parameter. If the closing quote is missing, nothing does.
# The possessive quantifiers (`*+`) prevent backtracking.
_PARAMETER = re.compile(rb'(?:[^";]|"(?:[^"\\]|\\.?)*+"?)++')
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*+)"')
_ESCAPED = re.compile(rb"\\(.)")


def model_in_form(head: bytes, content_type: str) -> str | None:
    """Return the field `model` of a multipart form, or None if it has none so far.

    Raises InvalidRequest if the body is not a form or the model is empty.
    """
    if not _boundary(content_type):
        raise InvalidRequest("This path expects multipart/form-data with a boundary.")
    if not head:
        raise InvalidRequest("The request has no body; a multipart form is expected.")
    for start, end in form_values(head, content_type, b"model"):
        model = head[start:end].decode(errors="replace").strip()
        if not model:
            raise invalid_model()
        return model
    return None


def form_values(head: bytes, content_type: str, name: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each complete value of the form's fields with this name."""
    delimiter = _LINE_END + b"--" + _boundary(content_type)
    # A delimiter includes the end of the line before it, which the first line does not have.
    starts_with_delimiter = head.startswith(delimiter[len(_LINE_END) :])
    end = -len(_LINE_END) if starts_with_delimiter else head.find(delimiter)
    for _ in range(MAX_PARTS):
        start = end + len(delimiter)
        end = head.find(delimiter, start)
        if end < start:
            return  # no delimiter at all, or a last part that may be cut
        headers_end = head.find(_HEADERS_END, start, end)
        part_headers = head[start : min(headers_end, start + _MAX_PART_HEADER_BYTES)]
        if headers_end >= 0 and _field_name(part_headers) == name:
            yield headers_end + len(_HEADERS_END), end


def _boundary(content_type: str) -> bytes:
    if not content_type.lower().startswith("multipart/"):
        return b""
    return _parameter(content_type.encode(), b"boundary")


def _field_name(part_headers: bytes) -> bytes:
    found = _DISPOSITION.search(part_headers)
    return _parameter(found[1], b"name") if found else b""


def _parameter(header: bytes, name: bytes) -> bytes:
    """Return the first parameter with this name in a header's value; empty if there is none."""
    for parameter in _PARAMETER.findall(header)[1:]:
        key, _, value = parameter.partition(b"=")
        if key.strip().lower() == name:
            return _unquoted(value.strip())
    return b""


def _unquoted(value: bytes) -> bytes:
    """Return a parameter's value without its quotes; empty if they do not enclose all of it."""
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        return _ESCAPED.sub(rb"\1", quoted[1])
    return b"" if b'"' in value else value
