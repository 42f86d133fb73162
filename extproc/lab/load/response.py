"""The response of a server, parsed as its events arrive: token times, usage, errors and text.

Nearly all events of a stream carry one token and nothing else of interest, which a pattern
recognizes in their bytes. Only the other events are parsed as JSON when they arrive. If the text is
needed, events with tokens are parsed after the response has ended, when timing no longer matters.

An event with a choice counts as one token, as in vLLM's benchmark_serving. The event that opens a
chat with only a role does not count, because the server sends it before the model runs.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from typing import Any

import jiter

from extproc.lab.load.failure import Failure, message_of
from extproc.lab.workloads.workload import Api

_DONE = b"[DONE]"
_TOKEN = {
    "chat": re.compile(rb'"content": ?"[^"]'),
    "completions": re.compile(rb'"text": ?"'),
}
"""Patterns of an event with a token. They cannot match inside a string, whose quotes are
escaped."""


@dataclass(frozen=True)
class Usage:
    """The token counts that the engine reports."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = -1


class Response:
    """One response; `keep` if its text is needed later."""

    __slots__ = (
        "_api", "_ended", "_error", "_kept", "_latest", "_token",
        "first", "gaps", "keep", "last", "tokens", "usage",
    )  # fmt: skip

    def __init__(self, api: Api, keep: bool) -> None:
        self._api = api
        self._token = _TOKEN[api]
        self._latest = b""
        self._ended = False
        self._error = ""
        self._kept: list[bytes] = []
        self.keep = keep
        self.first = 0.0
        self.last = 0.0
        self.gaps = array("d")
        """Seconds between events with tokens."""
        self.tokens = 0
        """Events with tokens: the number of tokens, unless usage reports another one."""
        self.usage: Usage | None = None

    def event(self, data: bytes, now: float) -> None:
        """Process an event of the stream that arrived at `now`."""
        if self._token.search(data):
            self._add_token(data, now)
        elif data == _DONE:
            self._ended = True
        else:
            self._read(data, now)

    def _add_token(self, data: bytes, now: float) -> None:
        if self.tokens:
            self.gaps.append(now - self.last)
        else:
            self.first = now
        self.last = now
        self.tokens += 1
        self._latest = data
        if self.keep:
            self._kept.append(data)

    def _read(self, data: bytes, now: float) -> None:
        """Parse an unusual event."""
        document = _document(data)
        if self._note(document):
            return
        if any(_has_token(choice, self._api) for choice in _choices(document)):
            self._add_token(data, now)

    def _note(self, document: dict[str, Any]) -> bool:
        """Read usage, errors and the end of the stream; return True for an error."""
        error = document.get("error")
        if error or document.get("object") == "error":
            self._error = message_of(document)
            return True
        self.usage = _usage(document.get("usage")) or self.usage
        if any(choice.get("finish_reason") for choice in _choices(document)):
            self._ended = True
        return False

    def whole(self, body: bytes, now: float) -> None:
        """Process a response without streaming."""
        document = _document(body)
        self._ended = True
        if not self._note(document) and _choices(document):
            self._add_token(body, now)

    def verdict(self) -> Failure | None:
        """Return the failure of the response that has ended; None if it succeeded."""
        if self._latest and (self.usage is None or not self._ended):
            # Some servers send usage or the finish reason with the last token.
            self._note(_document(self._latest))
        if self._error:
            return Failure("an error in the stream", self._error)
        if not self._ended:
            return Failure("cut off", "the stream ended without [DONE]")
        if not self.tokens:
            return Failure("no token", "the response had status 200, but no token")
        return None

    def text(self) -> str:
        """Return the generated text."""
        choices = (choice for data in self._kept for choice in _choices(_document(data)))
        return "".join(_text(choice) for choice in choices)


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = jiter.from_json(data, cache_mode="keys")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _choices(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _has_token(choice: dict[str, Any], api: Api) -> bool:
    """Return True if a choice stands for a token, even for one without text."""
    if api == "completions":
        return isinstance(choice.get("text"), str)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    values = [value for name, value in delta.items() if name != "role" and value is not None]
    return any(values) if "role" in delta else bool(values)


def _text(choice: dict[str, Any]) -> str:
    """Return the text of a choice, from a chunk or a whole response of either API."""
    message = choice.get("delta") or choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _usage(found: object) -> Usage | None:
    if not isinstance(found, dict):
        return None
    details = found.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        _count(found.get("prompt_tokens"), 0),
        _count(found.get("completion_tokens"), 0),
        _count(cached, -1),
    )


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else default
