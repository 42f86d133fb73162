"""Workloads of any shape, for random trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, conversation


@dataclass(frozen=True)
class Shape:
    """The parameters of sessions."""

    prefixes: int
    """Number of shared prefixes. Each session begins with one of them."""

    prefix_tokens: int
    """Tokens of each prefix; 0: sessions share nothing."""

    skew: float
    """Exponent of Zipf's law for the popularity of prefixes; 0: all are equally popular."""

    chunks: int
    """Parts of a prefix. The order of several parts varies, as that of retrieved chunks does."""

    turns: tuple[int, int]
    """Least and most turns of a session."""

    message_tokens: int
    """Mean tokens that a turn adds, without the response before it."""

    sigma: float
    """Sigma of the logarithm of messages."""

    answer_tokens: int
    """Mean tokens of a response."""

    think_seconds: float
    """Mean seconds between a response and the next request."""


_DISORDER = 1.0
"""Sigma of the noise on the place of a chunk."""


def sessions(shape: Shape, number: int, rng: Random, most_tokens: int) -> list[Session]:
    """Return sessions of a shape. Each ends before it would exceed `most_tokens`."""
    prefixes = [_prefix(shape, one) for one in range(shape.prefixes)]
    popularity = list(accumulate((one + 1) ** -shape.skew for one in range(shape.prefixes)))
    chosen = rng.choices(prefixes, cum_weights=popularity, k=number)
    return [
        Session(_turns(shape, f"drawn/{one}", prefix, rng, most_tokens))
        for one, prefix in enumerate(chosen)
    ]


def _prefix(shape: Shape, number: int) -> list[Segment]:
    tokens = shape.prefix_tokens // shape.chunks
    if not tokens:
        return []
    name = f"drawn/prefix/{number}"
    return [Segment(f"{name}/{chunk}", tokens, "system") for chunk in range(shape.chunks)]


def _turns(
    shape: Shape, name: str, prefix: Sequence[Segment], rng: Random, most_tokens: int
) -> list[Turn]:
    opening = list(prefix)
    if shape.chunks > 1:
        places = {chunk: place + rng.gauss(0, _DISORDER) for place, chunk in enumerate(prefix)}
        opening.sort(key=places.__getitem__)
    messages: list[int] = []
    answers: list[int] = []
    left = most_tokens - sum(segment.tokens for segment in opening)
    for _ in range(rng.randint(*shape.turns)):
        message = log_normal(rng, shape.message_tokens, shape.sigma, least=8, most=16_000)
        answer = log_normal(rng, shape.answer_tokens, 0.6, least=4, most=2_000)
        left -= message + answer
        if left < 0 and messages:
            break
        messages.append(message)
        answers.append(answer)
    return [
        turn._replace(think_seconds=_pause(shape, rng) if place else 0.0)
        for place, turn in enumerate(conversation(name, opening, messages, answers))
    ]


def _pause(shape: Shape, rng: Random) -> float:
    sigma = 0.7
    return shape.think_seconds * rng.lognormvariate(-sigma * sigma / 2, sigma)
