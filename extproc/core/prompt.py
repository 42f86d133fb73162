"""The prompt of a request as text, from whichever API's fields it came in.

One view serves all generating APIs: a sequence of turns, each a role and a
text. Chat completions, Responses and Anthropic's Messages differ in field
names only; a completion's prompt is one turn of the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from extproc.core.body import Document

_SYSTEM_ROLES = frozenset({"system", "developer"})
# Fields that hold the whole of the system prompt, outside the list of messages.
_SYSTEM_FIELDS = ("system", "instructions")
_PROMPT_FIELDS = frozenset({"messages", "input", "prompt", "tools", *_SYSTEM_FIELDS})


def first_user_message(document: Document, limit: int) -> str:
    """The text of the first turn of the user, as KubeAI's PrefixHash takes it.

    String contents, or the text parts of a list joined with nothing between;
    a completion's prompt, or the first of several. Empty where there is none.
    `limit` (characters) bounds the work on token ids, nothing else.
    """
    if document.get("prompt") is not None:
        return _completion_prompt(document["prompt"], limit)
    messages = document.get("messages", document.get("input"))
    if isinstance(messages, str):
        return messages
    for message in _objects(messages):
        if message.get("role") == "user":
            return text_of(message.get("content"))
    return ""


def system_text(document: Document) -> str:
    """The system prompt: its own field, and system messages before the first of the user.

    Later system messages do not count: a conversation's key must not change
    because an application slipped one in.
    """
    texts = [text_of(document[field]) for field in _SYSTEM_FIELDS if field in document]
    for message in _objects(document.get("messages", document.get("input"))):
        if message.get("role") not in _SYSTEM_ROLES:
            break
        texts.append(text_of(message.get("content")))
    return "".join(texts)


def prompt_head(document: Document, limit: int) -> str:
    """The first `limit` characters of everything in the prompt, in the body's own order.

    All texts and numbers below the prompt's fields: tools, system prompt, roles,
    messages, tool calls, parts that are no text, token ids. The body's order and
    not the chat template's, so that a cut body gives the beginning of what the
    whole body would have given.
    """
    pieces: list[str] = []
    length = 0
    for piece in _leaves([document[field] for field in document if field in _PROMPT_FIELDS]):
        pieces.append(piece)
        length += len(piece) + 1
        if length > limit:
            break
    return "\n".join(pieces)[:limit]


def text_of(content: Any) -> str:
    """The text of a message's content; parts without text count nothing."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in _objects(content))
    return "".join(text for text in texts if isinstance(text, str))


def _completion_prompt(prompt: Any, limit: int) -> str:
    """A prompt may be a string, strings, token ids, or lists of token ids: the first counts."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list):
        # Each id gives a character and a space at least.
        return " ".join(str(token) for token in islice(prompt, limit))
    return prompt if isinstance(prompt, str) else ""


def _leaves(value: Any) -> Iterator[str]:
    """All texts and numbers below a JSON value, in order; the type of a part says nothing."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, member in value.items():
            if key != "type":
                yield from _leaves(member)
    elif isinstance(value, list):
        for member in value:
            yield from _leaves(member)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _objects(value: Any) -> Iterator[Document]:
    if isinstance(value, list):
        for member in value:
            if isinstance(member, dict):
                yield member
