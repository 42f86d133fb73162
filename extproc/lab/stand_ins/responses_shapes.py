"""Bodies of OpenAI's Responses API, as vLLM 0.32 writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from extproc.lab.stand_ins.response_shape import TokenCounts, Words, text_of
from extproc.lab.stand_ins.responses_requests import ResponsesRequest

_EMPTY: dict[str, object] = {
    "id": "",
    "created_at": 0,
    "incomplete_details": None,
    "instructions": None,
    "metadata": None,
    "model": "",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_output_tokens": 0,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "service_tier": "auto",
    "status": "in_progress",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "usage": None,
    "user": None,
    "input_messages": None,
    "output_messages": None,
}
"""A response with vLLM's defaults, in vLLM's order: `usage` is near the end."""

_ECHOED = (
    "instructions",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
    "background",
    "max_tool_calls",
    "previous_response_id",
    "reasoning",
    "service_tier",
    "text",
    "truncation",
    "user",
)
"""Fields of a request that a response repeats."""


def response(
    response_id: str, model: str, created: int, request: ResponsesRequest, status: str
) -> dict[str, Any]:
    """Return a response without output."""
    asked = request.document
    return {
        **_EMPTY,
        "id": response_id,
        "created_at": created,
        "model": model,
        "max_output_tokens": request.generation.max_tokens,
        "status": status,
        **{field: asked[field] for field in _ECHOED if asked.get(field) is not None},
    }


def finished(
    begun: Mapping[str, Any], request: ResponsesRequest, words: Words, counts: TokenCounts
) -> dict[str, Any]:
    """Return the response with its output; it is incomplete if the request set a limit."""
    ending: dict[str, Any] = {"status": "completed"}
    if request.generation.limited:
        reason = {"reason": "max_output_tokens"}
        ending = {"status": "incomplete", "incomplete_details": reason}
    output = [_message(begun["id"], text_of(words), "completed")]
    return {**begun, **ending, "output": output, "usage": _usage(counts)}


def _message(response_id: str, text: str | None, status: str) -> dict[str, Any]:
    """Return the only item of the output; without content if `text` is None."""
    return {
        "id": f"msg_{response_id.removeprefix('resp_')}",
        "content": [] if text is None else [_part(text)],
        "role": "assistant",
        "status": status,
        "type": "message",
    }


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _usage(counts: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {
            "cached_tokens": counts.cached,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": counts.completion,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": counts.prompt + counts.completion,
    }


class ResponsesResponse:
    """A response to /v1/responses with a single message."""

    def __init__(
        self,
        begun: dict[str, Any],
        request: ResponsesRequest,
        keep: Callable[[dict[str, Any], str], None],
    ) -> None:
        """Prepare the events; `keep` is called with the finished response and its text."""
        self._begun = begun
        self._request = request
        self._keep = keep
        self._numbers = count()
        item = _message(begun["id"], None, "in_progress")
        self._at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        self._item = item

    def preface(self) -> bytes:
        """Return two events with the response without output."""
        begun = {"response": self._begun}
        return self._event("response.created", begun) + self._event("response.in_progress", begun)

    def opening(self) -> bytes:
        """Return the start of the output item and of its text."""
        item = {"output_index": 0, "item": self._item}
        part = {**self._at, "part": _part("")}
        return self._event("response.output_item.added", item) + self._event(
            "response.content_part.added", part
        )

    def token_chunks(self, words: Words, last: bool, index: int = 0) -> bytes:
        """Return one event for each word."""
        kind = "response.output_text.delta"
        deltas = ({**self._at, "delta": word.decode(), "logprobs": []} for word in words)
        return b"".join(self._event(kind, delta) for delta in deltas)

    def closing(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the ends of the text, its part, its item and the response."""
        text, document = text_of(texts[0]), self._finish(texts[0], counts)
        part = {**self._at, "part": _part(text)}
        item = {"output_index": 0, "item": document["output"][0]}
        return (
            self._event("response.output_text.done", {**self._at, "text": text, "logprobs": []})
            + self._event("response.content_part.done", part)
            + self._event("response.output_item.done", item)
            # vLLM sends this event for every status.
            + self._event("response.completed", {"response": document})
        )

    def whole(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the body of the response."""
        return json.dumps(self._finish(texts[0], counts)).encode()

    def _finish(self, words: Words, counts: TokenCounts) -> dict[str, Any]:
        document = finished(self._begun, self._request, words, counts)
        self._keep(document, text_of(words))
        return document

    def _event(self, kind: str, fields: Mapping[str, object]) -> bytes:
        data = {**fields, "sequence_number": next(self._numbers), "type": kind}
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
