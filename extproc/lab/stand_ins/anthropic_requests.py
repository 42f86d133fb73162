"""Prompts and options in bodies of Anthropic's Messages API, read as vLLM 0.32 reads them."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.lab.stand_ins import tokens
from extproc.lab.stand_ins.generation_request import (
    BadRequest,
    Document,
    GenerationRequest,
    Message,
    message_of,
    model_of,
    read_document,
    salt_of,
)
from extproc.lab.stand_ins.request_error import RequestError

_BILLING = "x-anthropic-billing-header"
"""Start of a system block that Claude Code changes with each request; vLLM drops the block."""

_ROLES = {"ctx": "user", "msg": "user"}
"""Undocumented roles that Claude Code sends, and the roles that vLLM takes them for."""


def messages_request(body: bytes) -> GenerationRequest:
    """Read a body of /v1/messages. Raises RequestError."""
    document = _validated(body)
    limit = document.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise _invalid("max_tokens", "max_tokens must be positive")
    return GenerationRequest(
        model=model_of(document),
        prompt=_prompt(document),
        max_tokens=limit,
        stream=document.get("stream") is True,
        salt=salt_of(document),
    )


def counted_request(body: bytes) -> GenerationRequest:
    """Read a body of /v1/messages/count_tokens, which generates nothing. Raises RequestError."""
    document = _validated(body)
    return GenerationRequest(
        model=model_of(document), prompt=_prompt(document), max_tokens=0, stream=False
    )


def _validated(body: bytes) -> Document:
    document = read_document(body)
    if not isinstance(document.get("model"), str) or not document["model"]:
        raise _invalid("model", "Field required")
    if not isinstance(document.get("messages"), list):
        raise _invalid("messages", "Field required")
    return document


def _prompt(document: Document) -> bytes:
    """Render the prompt: system texts first and joined, then the conversation."""
    messages = [_renamed(message_of(message)) for message in _messages(document)]
    system = _system_texts(document.get("system"))
    system += [text for role, text in messages if role == "system"]
    conversation = [message for message in messages if message[0] != "system"]
    if system:
        conversation.insert(0, ("system", "".join(system)))
    return tokens.tokenize(tokens.chat_segments(conversation))


def _messages(document: Document) -> Iterator[object]:
    """Yield the messages, without the billing blocks of system messages."""
    for message in document["messages"]:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and message.get("role") == "system":
            yield {**message, "content": [part for part in content if not _is_billing(part)]}
        else:
            yield message


def _system_texts(system: object) -> list[str]:
    if system is None or system == "":
        return []
    if isinstance(system, str):
        return [system]
    if not isinstance(system, list):
        raise BadRequest("system: must be a string or a list of blocks")
    blocks = [block for block in system if isinstance(block, dict) and not _is_billing(block)]
    return [block["text"] for block in blocks if isinstance(block.get("text"), str)]


def _is_billing(block: object) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING)


def _renamed(message: Message) -> Message:
    role, text = message
    return _ROLES.get(role, role), text


def _invalid(field: str, problem: str) -> RequestError:
    """Return the error of vLLM's body validation, which has OpenAI's shape on all paths."""
    message = f"1 validation error:\n  body.{field}: {problem}"
    return RequestError(400, "Bad Request", message, f"body.{field}")
