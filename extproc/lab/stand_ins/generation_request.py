"""Generation requests: the fields that all of vLLM's APIs share, and their parsing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extproc.lab.stand_ins.request_error import RequestError

DEFAULT_MAX_TOKENS = 16
"""Output tokens of a request without a limit; OpenAI's default for completions."""

Document = Mapping[str, Any]
Message = tuple[str, str]
"""Role and text."""


class BadRequest(RequestError):
    """An error with status 400."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "BadRequestError", message)


@dataclass(frozen=True)
class GenerationRequest:
    """A generation request, from any API."""

    model: str | None
    prompt: bytes
    """Tokens; see `extproc.lab.stand_ins.tokens`."""

    max_tokens: int
    stream: bool
    include_usage: bool = False
    """True to end an OpenAI stream with a usage chunk."""

    more_prompts: tuple[bytes, ...] = ()
    """Further prompts of a completion; each has a choice of its own."""

    salt: str = ""
    """The value of `cache_salt`: equal prompts with different salts share no blocks."""

    limited: bool = True
    """True if the request sets `max_tokens`; otherwise the finish reason is a stop of the model."""

    @property
    def prompts(self) -> tuple[bytes, ...]:
        """All prompts, in the order of their choices."""
        return (self.prompt, *self.more_prompts)


def read_document(body: bytes) -> Document:
    """Return the JSON object of a body. Raises BadRequest."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body is not a JSON object")
    return document


def model_of(document: Document) -> str | None:
    """Return the model that a request names. Raises BadRequest."""
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequest("model: must be a string")
    return model


def limit_of(document: Document, *fields: str) -> int | None:
    """Return the first of these fields that is set, in tokens. Raises BadRequest."""
    for field in fields:
        value = document.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadRequest(f"{field}: must be a positive integer")
        return value
    return None


def salt_of(document: Document) -> str:
    """Return `cache_salt`, or an empty string without one. Raises BadRequest."""
    salt = document.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        raise BadRequest("Parameter 'cache_salt' must be a non-empty string if provided.")
    return salt


def message_of(message: object) -> Message:
    """Return the role and the text of a chat message. Raises BadRequest."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest("messages: each must be an object with a role")
    return message["role"], text_of(message.get("content"))


def text_of(content: object) -> str:
    """Return the text of a message's content. Raises BadRequest.

    Images and audio become a short text with a hash of their data. vLLM also hashes them into the
    block ids, so that different images share no blocks.
    """
    if content is None:
        return ""  # the content of a message with tool calls
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest("messages: content must be a string or a list of parts")
    return "".join(_part(part) for part in content)


_MEDIA = ("image_url", "input_audio", "audio_url", "video_url", "source")


def _part(part: object) -> str:
    if not isinstance(part, dict):
        return ""
    for field in ("text", "thinking"):
        if isinstance(part.get(field), str):
            text: str = part[field]
            return text
    if part.get("type") == "tool_result":
        return text_of(part.get("content"))
    if part.get("type") == "tool_use":
        return json.dumps(part.get("input"))
    for field in _MEDIA:
        if part.get(field):
            data = json.dumps(part[field]).encode()
            return f"<|{field} {hashlib.md5(data, usedforsecurity=False).hexdigest()}|>"
    return ""
