"""The text of a request's prompt, whichever API's fields hold it.

All generating APIs are read as a list of messages, each with a role and a content. Chat
completions, Responses and Anthropic's Messages use different field names only. A completion's
prompt is one user message.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any, NamedTuple

import xxhash

from extproc.core.request.json_document import Document
from extproc.core.request.previous_turn import previous_turn
from extproc.core.request.prompt_leaves import (
    NONE_OPEN,
    Plain,
    leaves_of,
    number_text,
    open_values,
)

_SYSTEM_ROLES = frozenset({"system", "developer"})
# Fields outside the messages that hold the system prompt.
_SYSTEM_FIELDS = ("system", "instructions")
_MAX_VERBATIM_CHARS = 1024
"""Longer `data:` URLs are replaced by a hash."""
_BILLING = "x-anthropic-billing-header"
"""Beginning of a system block that Claude Code writes, with another hash in each request. vLLM
removes such blocks from a list of system blocks (its PR 36829), but not from a system prompt that
is one string."""
_PROMPT_FIELDS = frozenset({"messages", "input", "prompt", "tools", *_SYSTEM_FIELDS})


def first_user_message(document: Document, limit: int) -> str:
    """Return the text of the first user message, as KubeAI's PrefixHash does.

    The parts of a list are joined without a separator. A completion's prompt, or the first of
    several, counts as user message. The text is empty if there is none. `limit` (characters) only
    bounds the work on token ids.
    """
    message = _first_user_content(document)
    if isinstance(message, dict):
        return text_of(message.get("content"))
    if isinstance(message, list):
        # Each id gives at least one character and a space.
        return " ".join(map(_token_text, islice(message, limit)))
    return message if isinstance(message, str) else ""


def first_user_message_is_complete(document: Document) -> bool:
    """Return True if a cut body contains the first user message to its end: more follows it."""
    message = _first_user_content(document)
    last = next(reversed(document.values()), None)
    last_item = last[-1] if isinstance(last, list) and last else last
    return message is not None and message is not last and message is not last_item


def system_text(document: Document, *, cut: bool = False) -> str:
    """Return the system prompt: its own field, and the system messages before any other message.

    Later system messages do not count, because an application may insert one in the middle of a
    conversation, and the conversation's key must not change. `cut`: the body may end anywhere.
    """
    texts = [text_of(_field(document, field, cut)) for field in _SYSTEM_FIELDS if field in document]
    for message in _objects(_messages(document)):
        if not _is_system_message(message):
            break
        texts.append(text_of(message.get("content")))
    return "".join(texts)


def system_text_is_complete(document: Document) -> bool:
    """Return True if a cut body contains the system prompt to its end.

    The first user message must be complete. Without a system prompt, one may still follow: its own
    field often comes after the messages.
    """
    last = next(reversed(document), None)
    return last not in _SYSTEM_FIELDS and system_text(document) != ""


def prompt_head(document: Document, limit: int, *, cut: bool = False) -> str:
    """Return the first `limit` characters of the prompt, in the body's own order.

    It contains all strings and numbers of the prompt's fields: tools, system prompt, roles,
    messages, tool calls, other parts, token ids. The chat template's order would be another one;
    in the body's order, a cut body (`cut`) gives the same beginning as the whole body.
    """
    pieces: list[str] = []
    length = 0
    fields = [_field(document, field, cut) for field in document if field in _PROMPT_FIELDS]
    for piece in leaves_of(fields, False, open_values(document) if cut else NONE_OPEN):
        pieces.append(piece)
        length += len(piece) + 1
        if length > limit:
            break
    return "\n".join(pieces)[:limit]


class PromptText(NamedTuple):
    """A prompt as one text."""

    text: str
    system_chars: int
    """Characters of tools and system prompt, at the beginning of the text."""
    omitted_chars: int
    """Characters of the prompt after the text."""
    previous_chars: int = 0
    """Characters of the prompt of the previous turn, at the beginning of the text; 0 in a first
    turn."""
    answered_chars: int = 0
    """The same with the response to it."""


def prompt_text(document: Document, limit: int, *, cut: bool = False) -> PromptText:
    """Return everything that a chat template puts in a prompt, up to about `limit` characters.

    It has the template's order: tools, the system prompt, then the messages with their roles. The
    order of the request's fields, which clients choose, does not count. `cut`: the body may end
    anywhere.
    """
    still_open = open_values(document) if cut else NONE_OPEN
    messages = document.get("messages")
    if messages is None:
        messages = _field(document, "input", cut)
    if messages is None:
        messages = document.get("prompt")
    system_messages = _leading_system_messages(messages)
    system = [
        _field(document, "tools", cut),
        _field(document, "system", cut),
        document.get("instructions"),
        system_messages,
    ]
    first = _joined(leaves_of(system, True, still_open), limit)
    previous, response, new = _split(messages, len(system_messages), cut)
    middle = _joined(leaves_of(previous, True, still_open), limit - len(first.text))
    earlier = first.text + middle.text
    answer = _joined(leaves_of(response, True, still_open), limit - len(earlier))
    answered = earlier + answer.text
    rest = _joined(leaves_of(new, True, still_open), limit - len(answered))
    omitted = first.omitted_chars + middle.omitted_chars + answer.omitted_chars + rest.omitted_chars
    ends = (len(earlier), len(answered)) if previous else (0, 0)
    return PromptText(answered + rest.text, len(first.text), omitted, *ends)


def is_conversation(document: Document) -> bool:
    """Return True if the next turn will contain this prompt: it has all earlier messages."""
    return _messages(document) is not None and not document.get("previous_response_id")


def completion_prompts(document: Document) -> list[Any]:
    """Return the prompts of a completion that has several; empty for every other request."""
    prompts = document.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2 or not isinstance(prompts[0], str | list):
        return []
    return prompts if _messages(document) is None else []


def text_of(content: Any) -> str:
    """Return the text of a message's content. Parts without text add nothing."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in _objects(content))
    return "".join(text for text in texts if isinstance(text, str))


def _messages(document: Document) -> Any:
    """Return the messages of a request, or `input`. Servers treat null like a missing field."""
    messages = document.get("messages")
    return document.get("input") if messages is None else messages


def _field(document: Document, field: str, cut: bool) -> Any:
    """Return a field of the prompt as engines read it.

    A list of system blocks loses its billing blocks. A string in `input` is a user message, as in
    vLLM's Responses API. So the next turn, which has it as a message, begins with the same text.
    """
    value = document.get(field)
    if field == "tools":
        return Plain(value)
    if field == "input" and isinstance(value, str):
        return [{"role": "user", "content": value}]
    if field != "system" or not isinstance(value, list):
        return value
    kept = [block for block in value if not _is_billing(block)]
    if cut and kept and kept[-1] is value[-1] and next(reversed(document)) == field:
        text = kept[-1].get("text") if isinstance(kept[-1], dict) else None
        if isinstance(text, str) and _BILLING.startswith(text):
            kept.pop()  # may be a billing block that was cut
    return kept


def _is_billing(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING)


def _leading_system_messages(messages: Any) -> list[Any]:
    if not isinstance(messages, list):
        return []
    return list(takewhile(_is_system_message, messages))


def _is_system_message(message: Any) -> bool:
    role = message.get("role") if isinstance(message, dict) else None
    return isinstance(role, str) and role in _SYSTEM_ROLES


def _split(messages: Any, system: int, cut: bool) -> tuple[list[Any], list[Any], Any]:
    """Return the previous turn after the system messages, its response, and what is new."""
    if not isinstance(messages, list):
        return [], [], messages
    others = messages[system:]
    end, answered = previous_turn(others, cut=cut)
    return others[:end], others[end:answered], others[answered:]


def _joined(leaves: Iterator[str], limit: int) -> PromptText:
    """Return the leaves as one text of about `limit` characters. None of it is system prompt."""
    pieces: list[str] = []
    length = omitted = 0
    for leaf in leaves:
        if len(leaf) > _MAX_VERBATIM_CHARS and leaf.startswith("data:"):
            # An image is some tokens, but by far not as many as its base64 text.
            leaf = f"data:{xxhash.xxh64_hexdigest(leaf.encode())}"
        size = len(leaf) + 1
        if length < limit:
            pieces += ("\n", leaf)  # no separator after it: in a cut body, the leaf may continue
            length += size
        else:
            omitted += size
    return PromptText("".join(pieces), 0, omitted)


def _first_user_content(document: Document) -> Any:
    """Return the first user message: an object, or a completion's prompt.

    A prompt may be a string, strings, token ids, or lists of token ids. The first counts.
    """
    prompt = document.get("prompt")
    if prompt is not None:
        has_several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
        return prompt[0] if has_several else prompt
    messages = _messages(document)
    if isinstance(messages, str):
        return messages
    return next((m for m in _objects(messages) if m.get("role") == "user"), None)


def _token_text(token: Any) -> str:
    return number_text(token) if isinstance(token, int) else str(token)


def _objects(value: Any) -> Iterator[Document]:
    """Yield the objects in a list; nothing if the value is not a list."""
    if isinstance(value, list):
        for member in value:
            if isinstance(member, dict):
                yield member
