"""The interface between a simulated generation and the API it is reported in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Words = Sequence[bytes]
"""Tokens of an answer, one word each; they need no escaping in JSON."""


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of a whole request."""

    prompt: int
    completion: int
    cached: int
    """Prompt tokens that the prefix cache had."""


class ResponseShape(Protocol):
    """One response in the format of an API. A stream is preface, opening, chunks, closing."""

    def preface(self) -> bytes:
        """Return the events that the server sends before it computes anything."""

    def opening(self) -> bytes:
        """Return the events that come with the first token, before it."""

    def token_chunks(self, words: Words, last: bool, index: int = 0) -> bytes:
        """Return the events of these tokens of a choice; `last`: no more follow."""

    def closing(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the events after the last token; `texts` are the whole choices."""

    def whole(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the body of a response that is not streamed."""


def text_of(words: Words) -> str:
    """Return the text that these tokens make."""
    return b"".join(words).decode()
