"""The interface between a simulated generation and the API that returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Words = Sequence[bytes]
"""Tokens of a generated text, one word each; they need no escaping in JSON."""


@dataclass(frozen=True)
class TokenCounts:
    """Numbers of tokens of a request."""

    prompt: int
    completion: int
    cached: int
    """Prompt tokens found in the prefix cache."""


class ResponseShape(Protocol):
    """One response in the format of an API. A stream has preface, opening, chunks and closing."""

    def preface(self) -> bytes:
        """Return the events that the server sends before it computes anything."""

    def opening(self) -> bytes:
        """Return the events that the server sends with the first token, before its chunk."""

    def token_chunks(self, words: Words, last: bool, index: int = 0) -> bytes:
        """Return the events of these tokens of a choice; `last` if no more tokens follow."""

    def closing(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the events after the last token; `texts` are the complete choices."""

    def whole(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the body of a response without streaming."""


def text_of(words: Words) -> str:
    """Return the text of these tokens."""
    return b"".join(words).decode()
