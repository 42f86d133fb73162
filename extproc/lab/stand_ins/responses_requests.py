"""Prompts and options in bodies of OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.lab.stand_ins import tokens
from extproc.lab.stand_ins.generation_request import (
    DEFAULT_MAX_TOKENS,
    BadRequest,
    Document,
    GenerationRequest,
    Message,
    limit_of,
    model_of,
    salt_of,
    text_of,
)

_OUTPUTS = ("arguments", "output", "summary")
"""Content fields of items other than messages: calls, their results and reasoning."""


@dataclass(frozen=True)
class ResponsesRequest:
    """A request for a response."""

    document: Document
    """The body."""

    conversation: Sequence[Message]
    """All messages up to this request, including those of earlier responses."""

    generation: GenerationRequest

    @property
    def store(self) -> bool:
        """True if the response can be retrieved later."""
        return self.document.get("store") is not False

    @property
    def response_id(self) -> str:
        """The response id that the client chose; empty without one."""
        chosen = self.document.get("request_id")
        return chosen if isinstance(chosen, str) else ""

    @property
    def background(self) -> bool:
        """True if the client retrieves the response later instead of waiting for it."""
        return self.document.get("background") is True


def responses_request(document: Document, earlier: Sequence[Message]) -> ResponsesRequest:
    """Parse a body of /v1/responses, which continues the conversation `earlier`.

    Raises BadRequest.
    """
    conversation = [*earlier, *_messages(document.get("input"))]
    instructions = document.get("instructions")
    system = [("system", instructions)] if isinstance(instructions, str) and instructions else []
    limit = limit_of(document, "max_output_tokens")
    generation = GenerationRequest(
        model=model_of(document),
        prompt=tokens.tokenize(tokens.chat_segments([*system, *conversation])),
        max_tokens=limit or DEFAULT_MAX_TOKENS,
        limited=limit is not None,
        stream=document.get("stream") is True,
        salt=salt_of(document),
    )
    return ResponsesRequest(document, conversation, generation)


def _messages(value: object) -> list[Message]:
    if isinstance(value, str):
        return [("user", value)]
    if not isinstance(value, list):
        raise BadRequest("input: must be a string or a list of items")
    return [_item(item) for item in value]


def _item(item: object) -> Message:
    if not isinstance(item, dict):
        raise BadRequest("input: each item must be an object")
    if isinstance(item.get("role"), str):
        return item["role"], text_of(item.get("content"))
    kind = item.get("type")
    if not isinstance(kind, str):
        raise BadRequest("input: each item must have a role or a type")
    found = next((item[field] for field in _OUTPUTS if item.get(field)), "")
    return kind, found if isinstance(found, str) else json.dumps(found)
