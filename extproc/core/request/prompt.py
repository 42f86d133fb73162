"""The prompt of a request as text, from whichever API's fields it came in.

One view serves all generating APIs: a sequence of turns, each a role and a
text. Chat completions, Responses and Anthropic's Messages differ in field
names only; a completion's prompt is one turn of the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any, NamedTuple

import xxhash

from extproc.core.request.json_document import Document
from extproc.core.request.leaves import Open, leaves, number_text, open_in

_SYSTEM_ROLES = frozenset({"system", "developer"})
# Fields that hold the whole of the system prompt, outside the list of messages.
_SYSTEM_FIELDS = ("system", "instructions")
_LONGEST_DATA = 1024
"""Characters of a `data:` URL that could as well be text."""
_BILLING = "x-anthropic-billing-header"
"""Beginning of a system block that Claude Code writes, with another hash in each request. vLLM
leaves such blocks out of the prompt, wherever they stand in the list (its PR 36829); a system
prompt that is one string stays as it is."""
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


def system_text(document: Document, *, cut: bool = False) -> str:
    """The system prompt: its own field, and system messages before the first of the user.

    Later system messages do not count: a conversation's key must not change
    because an application slipped one in. `cut`: the body may end anywhere.
    """
    texts = [text_of(_field(document, field, cut)) for field in _SYSTEM_FIELDS if field in document]
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


def prompt_head(document: Document, limit: int, *, cut: bool = False) -> str:
    """The first `limit` characters of everything in the prompt, in the body's own order.

    All texts and numbers below the prompt's fields: tools, system prompt, roles,
    messages, tool calls, parts that are no text, token ids. The body's order and
    not the chat template's, so that a cut body (`cut`) gives the beginning of what the
    whole body would have given.
    """
    pieces: list[str] = []
    length = 0
    fields = [_field(document, field, cut) for field in document if field in _PROMPT_FIELDS]
    for piece in leaves(fields, False, open_in(document) if cut else ()):
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


def spoken(document: Document, limit: int, *, cut: bool = False) -> Spoken:
    """All that a chat template puts in a prompt, in its order, as far as some `limit` characters.

    Tools, the system prompt, then what was said, each with its role: the order of the request's
    fields, which clients choose, does not count. `cut`: the body may end anywhere.
    """
    still_open: Open = open_in(document) if cut else ()
    messages = document.get("messages", document.get("input", document.get("prompt")))
    openings = _openings(messages)
    system = [
        document.get("tools"),
        _field(document, "system", cut),
        document.get("instructions"),
        openings,
    ]
    opening = _joined(leaves(system, True, still_open), limit)
    said = messages[len(openings) :] if isinstance(messages, list) else messages
    rest = _joined(leaves(said, True, still_open), limit - len(opening.text))
    return Spoken(opening.text + rest.text, len(opening.text), opening.beyond + rest.beyond)


def prompts_of(document: Document) -> list[Any]:
    """The prompts of a completion that has several; empty for every other request."""
    prompts = document.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2 or not isinstance(prompts[0], str | list):
        return []
    return [] if "messages" in document or "input" in document else prompts


def _field(document: Document, field: str, cut: bool) -> Any:
    """A field of the prompt, without blocks that are not part of it."""
    value = document.get(field)
    if field != "system" or not isinstance(value, list):
        return value
    kept = [block for block in value if not _is_billing(block)]
    if cut and kept and kept[-1] is value[-1] and next(reversed(document)) == field:
        text = kept[-1].get("text") if isinstance(kept[-1], dict) else None
        if isinstance(text, str) and _BILLING.startswith(text):
            kept.pop()
    return kept


def _is_billing(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING)


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


def _token(token: Any) -> str:
    return number_text(token) if isinstance(token, int) else str(token)


def _objects(value: Any) -> Iterator[Document]:
    if isinstance(value, list):
        for member in value:
            if isinstance(member, dict):
                yield member
