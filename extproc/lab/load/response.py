"""What a server answers, as its events come: when tokens came, usage, complaints, the text.

Theory of operation. Almost all events of a stream carry a token and nothing else that is
wanted, which a pattern recognises in their bytes. Only other events are read as JSON, and
those with tokens where the text is wanted: after the last one came, when nobody waits.

What counts as a token is what vLLM's benchmark_serving counts, an event with a choice, but
for the event that opens a chat with a role alone: it comes before the model has run.
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
"""Names of members cannot occur inside of strings, where their quotes would be escaped."""


@dataclass(frozen=True)
class Usage:
    """What the engine counted."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = -1


class Response:
    """One answer. `keep` says whether its text will be asked for."""

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
        """Between events with tokens."""
        self.tokens = 0
        """Events with tokens; as many tokens as that, if no usage says otherwise."""
        self.usage: Usage | None = None

    def event(self, data: bytes, now: float) -> None:
        """An event of the stream, and when it came."""
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
        """An event that is no everyday one."""
        document = _document(data)
        if self._note(document):
            return
        if any(_has_token(choice, self._api) for choice in _choices(document)):
            self._add_token(data, now)

    def _note(self, document: dict[str, Any]) -> bool:
        """Takes usage and the signs of an end; whether that was a complaint."""
        error = document.get("error")
        if error or document.get("object") == "error":
            self._error = message_of(document)
            return True
        self.usage = _usage(document.get("usage")) or self.usage
        if any(choice.get("finish_reason") for choice in _choices(document)):
            self._ended = True
        return False

    def whole(self, body: bytes, now: float) -> None:
        """An answer that was not streamed: all of it came at once."""
        document = _document(body)
        self._ended = True
        if not self._note(document) and _choices(document):
            self._add_token(body, now)

    def verdict(self) -> Failure | None:
        """What is wrong with the answer, now that it is over."""
        if self._latest and (self.usage is None or not self._ended):
            # Some servers say them beside the last token.
            self._note(_document(self._latest))
        if self._error:
            return Failure("an error in the stream", self._error)
        if not self._ended:
            return Failure("cut off", "the stream ended without [DONE]")
        if not self.tokens:
            return Failure("no token", "the answer was 200, and over without a token")
        return None

    def text(self) -> str:
        """What the model said."""
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
    """Whether it stands for a token, which may have no text of its own."""
    if api == "completions":
        return isinstance(choice.get("text"), str)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    said = [value for name, value in delta.items() if name != "role" and value is not None]
    return any(said) if "role" in delta else bool(said)


def _text(choice: dict[str, Any]) -> str:
    """Of a chunk or of a whole answer, of either API."""
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
