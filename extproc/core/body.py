"""Reads a request body's head: enough to know the model and the prompt's beginning.

Envoy hands over the first part of a large body and stops there
(`BUFFERED_PARTIAL`), so the JSON may end anywhere: inside a key, an escape, a
multi-byte character. The body itself is never written anew; it travels from
client to upstream through Envoy, and we only look at its beginning.
"""

from __future__ import annotations

from email.message import Message
from typing import Any

import jiter

from extproc.core.errors import InvalidRequest
from extproc.core.paths import Api

Document = dict[str, Any]

MODEL_HEADER = "x-model"


def read_json(head: bytes, *, complete: bool) -> Document:
    """The object that a body's head holds, as far as it goes.

    Where the head is cut, the last string may be shortened and what follows is
    missing. Raises InvalidRequest for anything that no continuation could make
    a JSON object: bad syntax, bad UTF-8, nesting beyond 200, endless numbers.
    """
    if not head:
        raise InvalidRequest("The request has no body; a JSON object is expected.")
    try:
        document = jiter.from_json(
            head,
            # Prompts are unique: caching them would only hold on to their memory.
            cache_mode="keys",
            partial_mode=False if complete else "trailing-strings",
        )
    except ValueError as problem:
        raise InvalidRequest(f"The request body is not valid JSON: {problem}.") from None
    if not isinstance(document, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return document


def model_in_json(head: bytes, document: Document, *, complete: bool) -> str | None:
    """The model a JSON body names; None where the head ends before it.

    Raises InvalidRequest where a model is certainly missing or of a wrong type.
    """
    model = document.get("model")
    if not complete and next(reversed(document), None) == "model":
        # The cut may run through the name itself: believe only a closed string.
        model = jiter.from_json(head, cache_mode="keys", partial_mode=True).get("model")
    if model is None and not complete and not _has_null_model(document):
        return None
    if model is None:
        raise InvalidRequest("The request names no model.", param="model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("'model' must be a non-empty string.", param="model")
    return model


def _has_null_model(document: Document) -> bool:
    return "model" in document and document["model"] is None


def model_in_form(head: bytes, content_type: str, *, complete: bool) -> str | None:
    """The field `model` of a multipart form; None where the head ends before it.

    Raises InvalidRequest for a body that is no form or certainly has no model.
    """
    boundary = _boundary(content_type)
    if not boundary:
        raise InvalidRequest("This path expects multipart/form-data with a boundary.")
    if not head:
        raise InvalidRequest("The request has no body; a multipart form is expected.")
    # What follows the last delimiter may be cut; all before it is whole.
    for part in head.split(b"--" + boundary)[1:-1]:
        fields, found, value = part.partition(b"\r\n\r\n")
        if found and _field_name(fields) == "model":
            model = value.removesuffix(b"\r\n").decode(errors="replace").strip()
            if not model:
                raise InvalidRequest("'model' must be a non-empty string.", param="model")
            return model
    if complete:
        raise InvalidRequest("The form has no field 'model'.", param="model")
    return None


def _boundary(content_type: str) -> bytes:
    message = Message()
    message["content-type"] = content_type.replace("\n", " ").replace("\r", " ")
    if message.get_content_maintype() != "multipart":
        return b""
    return str(message.get_param("boundary") or "").encode()


def _field_name(fields: bytes) -> str | None:
    for line in fields.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            message = Message()
            message["content-disposition"] = value.decode(errors="replace").strip()
            parameter = message.get_param("name", header="content-disposition")
            return parameter if isinstance(parameter, str) else None
    return None


def missing_model(head: bytes, api: Api) -> InvalidRequest:
    """Why a request whose head does not reach its model is refused, and the ways out."""
    what = "form" if api is Api.FORM else "body"
    return InvalidRequest(
        f"The first {len(head)} bytes of the {what}, which is all the router sees, do not name "
        f"the model. Put 'model' before the long fields, or send the header '{MODEL_HEADER}'.",
        param="model",
    )
