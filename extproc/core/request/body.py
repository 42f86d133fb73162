"""Reads a request body's head: enough to know the model and the prompt's beginning.

Envoy hands over the first part of a large body and stops there
(`BUFFERED_PARTIAL`), so the JSON may end anywhere: inside a key, an escape, a
multi-byte character. The body itself is never written anew; it travels from
client to upstream through Envoy, and we only look at its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jiter

from extproc.core.request.paths import Api
from extproc.core.request.refusals import InvalidRequest, known_models

Document = dict[str, Any]

MODEL_HEADER = "x-model"

MOST_PARTS = 1000
"""Parts of a form that are looked at: an honest one has a few, and no other must keep us busy."""

# Bytes of one character in JSON: two escaped surrogates.
_LONGEST_ESCAPE = 12

_LINE_END = b"\r\n"
_DISPOSITION = re.compile(rb"^content-disposition:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
# A semicolon within quotes ends no parameter; where the closing quote is missing, nothing does.
# No part is tried twice (`*+`), however it ends.
_PARAMETER = re.compile(rb'(?:[^";]|"(?:[^"\\]|\\.?)*+"?)++')
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*+)"')
_ESCAPED = re.compile(rb"\\(.)")
_FIELDS_END = b"\r\n\r\n"
# A part's header lines; what is longer is no form that a client would send.
_LONGEST_FIELDS = 2048


def read_json(head: bytes, *, complete: bool) -> Document:
    """The object that a body's head holds, as far as it goes.

    Where the head is cut, the last string may be shortened and what follows is
    missing. Raises InvalidRequest for anything that no continuation could make
    a JSON object: bad syntax, bad UTF-8, nesting beyond 200, endless numbers.
    """
    if not head:
        raise InvalidRequest("The request has no body; a JSON object is expected.")
    document = _parsed(head, False if complete else "trailing-strings")
    if not isinstance(document, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return document


def _parsed(head: bytes, partial: bool | Literal["trailing-strings"]) -> Any:
    try:
        # Prompts are unique: caching them would only hold on to their memory.
        return jiter.from_json(head, cache_mode="keys", partial_mode=partial)
    except ValueError as problem:
        raise InvalidRequest(f"The request body is not valid JSON: {problem}.") from None


def model_in_json(head: bytes, document: Document, *, complete: bool) -> str | None:
    """Return the model that a JSON body names, or None where it names none so far.

    Raises InvalidRequest for a model of a wrong type.
    """
    if not complete and _may_be_cut(head, document.get("model")):
        # It may find fault with what only ended too early for the other mode.
        document = _parsed(head, True)
    model = document.get("model")
    if model is None:
        return None  # servers read null as if it were missing
    if not isinstance(model, str) or not model:
        raise InvalidRequest("'model' must be a non-empty string.", param="model")
    return model


def _may_be_cut(head: bytes, model: object) -> bool:
    """Whether the head could end inside this value: then its opening quote is near the end.

    Only then the head is parsed again, believing none but closed strings.
    """
    return isinstance(model, str) and b'"' in head[-_LONGEST_ESCAPE * (len(model) + 1) - 1 :]


def model_in_form(head: bytes, content_type: str) -> str | None:
    """Return the field `model` of a multipart form, or None where it has none so far.

    Raises InvalidRequest for a body that is no form, and for an empty model.
    """
    if not _boundary(content_type):
        raise InvalidRequest("This path expects multipart/form-data with a boundary.")
    if not head:
        raise InvalidRequest("The request has no body; a multipart form is expected.")
    for start, end in form_values(head, content_type, b"model"):
        model = head[start:end].decode(errors="replace").strip()
        if not model:
            raise InvalidRequest("'model' must be a non-empty string.", param="model")
        return model
    return None


def form_values(head: bytes, content_type: str, name: bytes) -> Iterator[tuple[int, int]]:
    """Where the values of a form's fields of this name stand, as far as they are whole."""
    delimiter = _LINE_END + b"--" + _boundary(content_type)
    # A delimiter begins a line; before the first line none ends.
    first = head.startswith(delimiter[len(_LINE_END) :])
    end = -len(_LINE_END) if first else head.find(delimiter)
    for _ in range(MOST_PARTS):
        start = end + len(delimiter)
        end = head.find(delimiter, start)
        if end < start:
            return  # there is no delimiter at all, or what follows the last one may be cut
        fields = head.find(_FIELDS_END, start, end)
        if fields >= 0 and _field_name(head[start : min(fields, start + _LONGEST_FIELDS)]) == name:
            yield fields + len(_FIELDS_END), end


def _boundary(content_type: str) -> bytes:
    if not content_type.lower().startswith("multipart/"):
        return b""
    return _parameter(content_type.encode(), b"boundary")


def _field_name(fields: bytes) -> bytes:
    found = _DISPOSITION.search(fields)
    return _parameter(found[1], b"name") if found else b""


def _parameter(header: bytes, name: bytes) -> bytes:
    """The first parameter of this name in a header's value; empty where there is none."""
    for parameter in _PARAMETER.findall(header)[1:]:
        key, _, value = parameter.partition(b"=")
        if key.strip().lower() == name:
            return _unquoted(value.strip())
    return b""


def _unquoted(value: bytes) -> bytes:
    """What a parameter's value says; nothing where its quotes do not enclose it."""
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        return _ESCAPED.sub(rb"\1", quoted[1])
    return b"" if b'"' in value else value


def missing_model(api: Api, known: Sequence[str], cut_at: int | None = None) -> InvalidRequest:
    """Return the refusal of a body that names no model, with the ways out.

    `cut_at`: bytes of the body that the gateway shows, where it shows only the head.
    """
    what = "form" if api is Api.FORM else "body"
    if cut_at is None:
        why = f"The {what} does not name a model. Put 'model' into the {what}"
    else:
        why = (
            f"The first {cut_at} bytes of the {what}, which is all the router sees, do not name "
            "the model. Put 'model' before the long fields"
        )
    return InvalidRequest(
        f"{why}, or send the header '{MODEL_HEADER}'. {known_models(known)}", param="model"
    )
