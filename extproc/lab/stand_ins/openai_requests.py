"""Prompts and options in bodies of OpenAI's chat completions and completions."""

from __future__ import annotations

from extproc.lab.stand_ins import tokens
from extproc.lab.stand_ins.generation_request import (
    DEFAULT_MAX_TOKENS,
    BadRequest,
    Document,
    GenerationRequest,
    limit_of,
    message_of,
    model_of,
    read_document,
    salt_of,
)

MOST_PROMPTS = 1_000
"""Most prompts of one completion."""


def chat_request(body: bytes) -> GenerationRequest:
    """Read a body of /v1/chat/completions. Raises BadRequest."""
    document = read_document(body)
    return _request(document, (chat_prompt(document),))


def completion_request(body: bytes) -> GenerationRequest:
    """Read a body of /v1/completions. Raises BadRequest."""
    document = read_document(body)
    return _request(document, completion_prompts(document))


def chat_prompt(document: Document) -> bytes:
    """Return the tokens of a chat's prompt. Raises BadRequest."""
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: must be a list of messages")
    return tokens.tokenize(tokens.chat_segments(message_of(message) for message in messages))


def completion_prompts(document: Document, field: str = "prompt") -> tuple[bytes, ...]:
    """Return the tokens of each prompt. Raises BadRequest.

    The field is a string, a list of strings, a list of token ids, or a list of such lists.
    """
    value = document.get(field)
    prompts = [value]
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        prompts = value
    if len(prompts) > MOST_PROMPTS:
        raise BadRequest(f"{field}: at most {MOST_PROMPTS} prompts")
    return tuple(_prompt(prompt, field) for prompt in prompts)


def _prompt(prompt: object, field: str) -> bytes:
    if isinstance(prompt, str) and prompt:
        return tokens.tokenize([prompt])
    if isinstance(prompt, list) and prompt and all(isinstance(number, int) for number in prompt):
        return tokens.from_ids(prompt)
    raise BadRequest(f"{field}: must be a string, a list of strings or token ids, and not empty")


def _request(document: Document, prompts: tuple[bytes, ...]) -> GenerationRequest:
    limit = limit_of(document, "max_completion_tokens", "max_tokens")
    options = document.get("stream_options")
    return GenerationRequest(
        model=model_of(document),
        prompt=prompts[0],
        more_prompts=prompts[1:],
        max_tokens=limit or DEFAULT_MAX_TOKENS,
        limited=limit is not None,
        stream=document.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        salt=salt_of(document),
    )
