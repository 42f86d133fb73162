"""What the stand-in reads of OpenAI's requests: the prompt's tokens and how to answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from extproc.lab import tokens
from extproc.lab.refusal import Refusal

DEFAULT_MAX_TOKENS = 16
"""Where the request does not say; OpenAI's default for completions."""


class BadRequest(Refusal):
    """Answered with 400; the message is for the client."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "BadRequestError", message)


@dataclass(frozen=True)
class GenerationRequest:
    """A request to generate, from either API."""

    model: str | None
    prompt: bytes
    """Tokens; see `extproc.lab.tokens`."""

    max_tokens: int
    stream: bool
    include_usage: bool
    """Whether a stream ends with a chunk of usage."""


def chat_request(body: bytes) -> GenerationRequest:
    """A body of /v1/chat/completions. Raises BadRequest."""
    return _request(body, _chat_prompt)


def completion_request(body: bytes) -> GenerationRequest:
    """A body of /v1/completions. Raises BadRequest."""
    return _request(body, _completion_prompt)


def _request(body: bytes, prompt: Callable[[dict[str, Any]], bytes]) -> GenerationRequest:
    document = _document(body)
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequest("model: must be a string")
    options = document.get("stream_options")
    return GenerationRequest(
        model=model,
        prompt=prompt(document),
        max_tokens=_max_tokens(document),
        stream=document.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body is not a JSON object")
    return document


def _max_tokens(document: dict[str, Any]) -> int:
    for field in ("max_completion_tokens", "max_tokens"):
        value = document.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadRequest(f"{field}: must be a positive integer")
        return value
    return DEFAULT_MAX_TOKENS


def _chat_prompt(document: dict[str, Any]) -> bytes:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: must be a list of messages")
    return tokens.tokenize(tokens.chat_segments(_message(message) for message in messages))


def _message(message: object) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest("messages: each must be an object with a role")
    return message["role"], _text(message.get("content"))


def _text(content: object) -> str:
    """Text of a content; parts of other kinds count nothing."""
    if content is None:
        return ""  # of an assistant that called tools
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest("messages: content must be a string or a list of parts")
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _completion_prompt(document: dict[str, Any]) -> bytes:
    """A string, strings, token ids, or lists of token ids; of several prompts the first."""
    prompt = document.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokens.tokenize([prompt])
    if isinstance(prompt, list) and prompt and all(isinstance(number, int) for number in prompt):
        return tokens.from_ids(prompt)
    raise BadRequest("prompt: must be a string, a list of strings or token ids, and not empty")
