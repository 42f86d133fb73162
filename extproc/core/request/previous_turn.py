"""The previous turn of a conversation, which an engine probably has in its cache.

A body holds the whole conversation: the prompt of the previous turn, the response to it, and what
the client has added. A response is one or several items that the model wrote: a message, tool
calls, its reasoning. Such items at the very end are a response that the model is to continue.

Examples in a prompt look like earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_MOST_ITEMS = 200
"""Items at the end of a conversation in which the last response is searched."""

_OF_MODEL = frozenset(("reasoning", "mcp_list_tools", "mcp_approval_request", "compaction"))
"""Types of items of the Responses API that the model or the server writes, besides calls."""


class PreviousTurn(NamedTuple):
    """The items of the previous turn, from the first on."""

    prompt: int = 0
    """The number of items of its prompt; 0 in a first turn."""

    answered: int = 0
    """The number of items of its prompt and of the response to it."""


def previous_turn(items: Sequence[Any], *, cut: bool = False) -> PreviousTurn:
    """Return where the previous turn ends.

    There is none without a response among the last items, or if nothing is before it. `cut`:
    further items may follow, so items of the model at the end are a response to an earlier turn.
    """
    end = len(items)
    least = max(0, end - _MOST_ITEMS)
    if not cut:
        end = _skip(items, end, least, of_model=True)
    answered = _skip(items, end, least, of_model=False)
    prompt = _skip(items, answered, least, of_model=True)
    return PreviousTurn(prompt, answered) if prompt > least else PreviousTurn()


def _skip(items: Sequence[Any], end: int, least: int, *, of_model: bool) -> int:
    """Return the end of the items before the last ones of this kind."""
    while end > least and _is_of_model(items[end - 1]) == of_model:
        end -= 1
    return end


def _is_of_model(item: Any) -> bool:
    """Return True if the model wrote this message, or this item of the Responses API."""
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    is_of_model = isinstance(kind, str) and (kind in _OF_MODEL or kind.endswith("_call"))
    return is_of_model or item.get("role") == "assistant"
