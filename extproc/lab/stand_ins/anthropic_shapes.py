"""Bodies of Anthropic's Messages API, as vLLM 0.32 writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from extproc.lab.stand_ins.request_error import RequestError
from extproc.lab.stand_ins.response_shape import TokenCounts, Words, text_of

_STOP = {"stop_reason": "max_tokens"}
_DELTA = (
    b'event: content_block_delta\ndata: {"index": 0, "type": "content_block_delta", '
    b'"delta": {"type": "text_delta", "text": "'
)


def error(refusal: RequestError) -> bytes:
    """Return the body of an error. vLLM keeps the type names of OpenAI's shape."""
    shape = {"type": refusal.kind, "message": str(refusal)}
    return json.dumps({"type": "error", "error": shape}).encode()


def counted(tokens: int) -> bytes:
    """Return the body of a response to /v1/messages/count_tokens."""
    shape = {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
    return json.dumps(shape).encode()


class MessagesResponse:
    """A response to /v1/messages: a message with a single block of text."""

    def __init__(self, model: str, number: int, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        # vLLM makes a chat completion and keeps its id.
        self._head = {
            "id": f"chatcmpl-stand-in-{number}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def preface(self) -> bytes:
        """Return nothing: vLLM sends its first event with the first token."""
        return b""

    def opening(self) -> bytes:
        """Return the start of the message, then the start of its block."""
        # The number of cached tokens is not known yet, so usage omits it.
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        ending = {"stop_reason": None, "stop_sequence": None, "usage": usage}
        message: dict[str, object] = {**self._head, "content": [], **ending}
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return _event("message_start", {"message": message}) + _event("content_block_start", block)

    def token_chunks(self, words: Words, last: bool, index: int = 0) -> bytes:
        """Return one event for each word."""
        chunks = b"".join(_DELTA + word + b'"}}\n\n' for word in words)
        return chunks + _event("content_block_stop", {"index": 0}) if last else chunks

    def closing(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the usage of the whole request and the end of the stream."""
        delta = {"delta": _STOP, "usage": _usage(counts)}
        return _event("message_delta", delta) + _event("message_stop", {})

    def whole(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the message, without fields that have no value."""
        content = [{"type": "text", "text": text_of(texts[0])}]
        message = {**self._head, "content": content, **_STOP, "usage": _usage(counts)}
        return json.dumps(message).encode()


def _usage(counts: TokenCounts) -> dict[str, int]:
    """Return the usage object, whose `input_tokens` exclude cached tokens."""
    return {
        "input_tokens": counts.prompt - counts.cached,
        "output_tokens": counts.completion,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
    }


def _event(kind: str, fields: Mapping[str, object]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
