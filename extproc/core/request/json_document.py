"""Parses JSON bodies with every value in them.

Envoy sends only the first part of a large body if it buffers it partially. So the JSON may end
anywhere: inside a key, an escape or a multi-byte character.
"""

from __future__ import annotations

from typing import Any, Literal

import jiter

from extproc.core.request.model_name import invalid_model
from extproc.core.request.refusals import InvalidRequest

Document = dict[str, Any]
"""A parsed JSON object."""

# Two escaped surrogates are the longest form of one character in JSON.
_MAX_ESCAPE_BYTES = 12


def parse_document(head: bytes, *, complete: bool) -> Document:
    """Parse a JSON object, or its first part if it is not `complete`.

    In a first part the last string may be shorter than it is in the body. Raises InvalidRequest if
    the bytes cannot be the beginning of a JSON object: bad syntax, bad UTF-8, nesting beyond 200
    levels, numbers with thousands of digits.
    """
    if not head:
        raise InvalidRequest("The request has no body; a JSON object is expected.")
    document = _parse(head, False if complete else "trailing-strings")
    if not isinstance(document, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return document


def model_of(head: bytes, document: Document, *, complete: bool) -> str | None:
    """Return the model that `document`, parsed from `head`, names; None if it names none so far.

    Raises InvalidRequest if the model is not a non-empty string.
    """
    if not complete and _may_be_cut(head, document.get("model")):
        # This mode drops a string that is not closed. It may reject a cut that the other accepts.
        document = _parse(head, True)
    model = document.get("model")
    if model is None:
        return None  # inference servers treat null like a missing field
    if not isinstance(model, str) or not model:
        raise invalid_model()
    return model


def _parse(head: bytes, partial: bool | Literal["trailing-strings"]) -> Any:
    try:
        # Prompts differ between requests: a cache of them would only use memory.
        return jiter.from_json(head, cache_mode="keys", partial_mode=partial)
    except ValueError as problem:
        raise InvalidRequest(f"The request body is not valid JSON: {problem}.") from None


def _may_be_cut(head: bytes, model: object) -> bool:
    """Return True if `head` can end inside this value: its opening quote is near the end.

    Only then is the head parsed a second time.
    """
    return isinstance(model, str) and b'"' in head[-_MAX_ESCAPE_BYTES * (len(model) + 1) - 1 :]
