"""The prompt of a request as text, from whichever API's fields it came in.

One view serves all generating APIs: a sequence of turns, each a role and a
text. Chat completions, Responses and Anthropic's Messages differ in field
names only; a completion's prompt is one turn of the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import Any, NamedTuple

import xxhash

from extproc.core.body import Document

_SYSTEM_ROLES = frozenset({"system", "developer"})
# Fields that hold the whole of the system prompt, outside the list of messages.
_SYSTEM_FIELDS = ("system", "instructions")
_LONGEST_DATA = 1024
"""Characters of a `data:` URL that could as well be text."""
_LONGEST_INTEGER = 1024
"""Bits of a number that could as well be a float."""
_PROMPT_FIELDS = frozenset({"messages", "input", "prompt", "tools", *_SYSTEM_FIELDS})


def first_user_message(document: Document, limit: int) -> str:
    """The text of the first turn of the user, as KubeAI's PrefixHash takes it.

    String contents, or the text parts of a list joined with nothing between;
    a completion's prompt, or the first of several. Empty where there is none.
    `limit` (characters) bounds the work on token ids, nothing else.
    """
    turn = _first_user_turn(document)
    if isinstance(turn, dict):
        return text_of(turn.get("content"))
    if isinstance(turn, list):
        # Each id gives a character and a space at least.
        return " ".join(map(_token, islice(turn, limit)))
    return turn if isinstance(turn, str) else ""


def first_user_message_is_whole(document: Document) -> bool:
    """Whether a cut body has the user's first turn to its end, because something follows it."""
    turn = _first_user_turn(document)
    last = next(reversed(document.values()), None)
    cut = last[-1] if isinstance(last, list) and last else last
    return turn is not None and turn is not last and turn is not cut


def system_text(document: Document) -> str:
    """The system prompt: its own field, and system messages before the first of the user.

    Later system messages do not count: a conversation's key must not change
    because an application slipped one in.
    """
    texts = [text_of(document[field]) for field in _SYSTEM_FIELDS if field in document]
    for message in _objects(document.get("messages", document.get("input"))):
        if not _is_of_the_system(message):
            break
        texts.append(text_of(message.get("content")))
    return "".join(texts)


def system_text_is_whole(document: Document) -> bool:
    """Whether a cut body has the system prompt to its end, given that the user's first turn is.

    A field of its own often follows the messages: where there is no system prompt yet,
    one may come.
    """
    last = next(reversed(document), None)
    return last not in _SYSTEM_FIELDS and system_text(document) != ""


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


class Spoken(NamedTuple):
    """A prompt as one text."""

    text: str
    system: int
    """Characters of it that are tools and system prompt, and come before all others."""
    beyond: int
    """Characters that come after it, and were only counted."""


def spoken(document: Document, limit: int) -> Spoken:
    """All that a chat template puts in a prompt, in its order, as far as some `limit` characters.

    Tools, the system prompt, then what was said, each with its role: the order of the request's
    fields, which clients choose, does not count.
    """
    messages = document.get("messages", document.get("input", document.get("prompt")))
    openings = _openings(messages)
    system = [document.get("tools"), *(document.get(field) for field in _SYSTEM_FIELDS)]
    opening = _joined(chain(_leaves(system), _leaves(openings)), limit)
    said = messages[len(openings) :] if isinstance(messages, list) else messages
    rest = _joined(_leaves(said), limit - len(opening.text))
    return Spoken(opening.text + rest.text, len(opening.text), opening.beyond + rest.beyond)


def _openings(messages: Any) -> list[Any]:
    """The system messages that a conversation begins with."""
    if not isinstance(messages, list):
        return []
    return list(takewhile(_is_of_the_system, messages))


def _is_of_the_system(message: Any) -> bool:
    role = message.get("role") if isinstance(message, dict) else None
    return isinstance(role, str) and role in _SYSTEM_ROLES


def _without_data(leaf: str) -> str:
    """A long text; of an image in its place what tells it apart: it is tokens, but not so many."""
    if leaf.startswith("data:"):
        return f"data:{xxhash.xxh64_hexdigest(leaf.encode())}"
    return leaf


def _joined(leaves: Iterator[str], limit: int) -> Spoken:
    pieces: list[str] = []
    length = beyond = 0
    for leaf in leaves:
        if len(leaf) > _LONGEST_DATA:
            leaf = _without_data(leaf)
        size = len(leaf) + 1
        if length < limit:
            pieces += ("\n", leaf)  # nothing behind it: of a cut body, more of it may come
            length += size
        else:
            beyond += size
    return Spoken("".join(pieces), 0, beyond)


def text_of(content: Any) -> str:
    """The text of a message's content; parts without text count nothing."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in _objects(content))
    return "".join(text for text in texts if isinstance(text, str))


def _first_user_turn(document: Document) -> Any:
    """What holds the user's first turn: a message, or a completion's prompt.

    A prompt may be a string, strings, token ids, or lists of token ids: the first counts.
    """
    prompt = document.get("prompt")
    if prompt is not None:
        several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
        return prompt[0] if several else prompt
    messages = document.get("messages", document.get("input"))
    if isinstance(messages, str):
        return messages
    return next((m for m in _objects(messages) if m.get("role") == "user"), None)


def _leaves(value: Any) -> Iterator[str]:
    """All texts and numbers below a JSON value, in order; the type of a part says nothing.

    One generator for the whole of it: one for each list would cost more than its leaves.
    """
    open_values: list[Iterator[Any]] = [iter((value,))]
    while open_values:
        for member in open_values[-1]:
            if isinstance(member, str):
                yield member
            elif isinstance(member, dict):
                if "type" in member:
                    member = {key: value for key, value in member.items() if key != "type"}
                open_values.append(iter(member.values()))
                break
            elif isinstance(member, list):
                open_values.append(iter(member))
                break
            elif isinstance(member, int | float) and not isinstance(member, bool):
                yield _number(member)
        else:
            open_values.pop()


def _token(token: Any) -> str:
    return _number(token) if isinstance(token, int) else str(token)


def _number(number: int | float) -> str:  # compiled, no whole number is a float
    """As text; thousands of digits in hexadecimal, for decimal ones take quadratic time."""
    if isinstance(number, int) and number.bit_length() > _LONGEST_INTEGER:
        return hex(number)
    return str(number)


def _objects(value: Any) -> Iterator[Document]:
    if isinstance(value, list):
        for member in value:
            if isinstance(member, dict):
                yield member
