"""Kinds of workloads in random trials, with the ranges of their sizes.

All ranges are assumptions. Sizes are drawn so that doubling is equally likely everywhere in a
range.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from extproc.lab.workloads.drawn import Shape
from extproc.lab.workloads.lengths import log_uniform

CLOSED = frozenset({"agents", "documents"})
"""Kinds with a number of concurrent sessions. The others have a rate."""


def _agents(rng: Random) -> Shape:
    """Draw 1 to 3 prefixes of 4,000 to 20,000 tokens; 10 to 60 turns of 500 to 3,000 tokens."""
    turns = rng.randint(10, 20), rng.randint(25, 60)
    return _shape(rng, (1, 3), (4_000, 20_000), turns, (500, 3_000), (150, 600), (3, 10), sigma=0.7)


def _documents(rng: Random) -> Shape:
    """Draw 1 to 6 documents of 15,000 to 80,000 tokens; one short question each."""
    return _shape(rng, (1, 6), (15_000, 80_000), (1, 1), (30, 200), (50, 300))


def _hot_prefix(rng: Random) -> Shape:
    """Draw one prefix of 4,000 to 50,000 tokens; one short question each."""
    return _shape(rng, (1, 1), (4_000, 50_000), (1, 1), (50, 500), (50, 200))


def _hot_chats(rng: Random) -> Shape:
    """Draw 1 or 2 prefixes of 4,000 to 50,000 tokens; 2 to 10 turns."""
    turns = 2, rng.randint(4, 10)
    return _shape(rng, (1, 2), (4_000, 50_000), turns, (50, 500), (50, 200), (2, 8))


def _retrieval(rng: Random) -> Shape:
    """Draw 50 to 500 topics of 8 to 20 chunks, 4,000 to 16,000 tokens; one question each."""
    return _shape(
        rng,
        (50, 500),
        (4_000, 16_000),
        (1, 1),
        (30, 100),
        (100, 300),
        skew=rng.uniform(0.7, 1.2),
        chunks=rng.randint(8, 20),
    )


def _tools(rng: Random) -> Shape:
    """Draw 3 to 20 prefixes of 1,000 to 5,000 tokens; 4 to 15 short steps."""
    turns = rng.randint(4, 6), rng.randint(8, 15)
    return _shape(rng, (3, 20), (1_000, 5_000), turns, (100, 500), (40, 150), (1, 2), sigma=0.9)


def _chats(rng: Random) -> Shape:
    """Draw 1 to 50 prefixes of 100 to 2,000 tokens; 1 to 10 turns."""
    turns = 1, rng.randint(3, 10)
    return _shape(rng, (1, 50), (100, 2_000), turns, (50, 500), (100, 400), (3, 12), sigma=1.2)


def _customers(rng: Random) -> Shape:
    """Draw 30 to 300 prefixes of 2,000 to 12,000 tokens; one question each."""
    skew = rng.uniform(0, 0.8)
    return _shape(rng, (30, 300), (2_000, 12_000), (1, 1), (100, 1_500), (50, 400), skew=skew)


def _distinct(rng: Random) -> Shape:
    """Draw single prompts of 200 to 4,000 tokens that share nothing."""
    return _shape(rng, (1, 1), (0, 0), (1, 1), (200, 4_000), (50, 250), sigma=0.8)


def _heavy_tail(rng: Random) -> Shape:
    """Draw 1 to 8 turns of 300 to 800 tokens, a few of them very long, that share nothing."""
    return _shape(rng, (1, 1), (0, 0), (1, 8), (300, 800), (80, 200), (2, 6), sigma=1.8)


KINDS: dict[str, Callable[[Random], Shape]] = {
    "agents": _agents,
    "documents": _documents,
    "hot prefix": _hot_prefix,
    "hot chats": _hot_chats,
    "retrieval": _retrieval,
    "tools": _tools,
    "chats": _chats,
    "customers": _customers,
    "distinct": _distinct,
    "heavy tail": _heavy_tail,
}
"""Functions that draw the shape of a kind."""


def _shape(
    rng: Random,
    prefixes: tuple[int, int],
    prefix_tokens: tuple[int, int],
    turns: tuple[int, int],
    message_tokens: tuple[int, int],
    answer_tokens: tuple[int, int],
    think_seconds: tuple[int, int] = (0, 0),
    *,
    sigma: float = 0.6,
    skew: float = 1.0,
    chunks: int = 1,
) -> Shape:
    return Shape(
        prefixes=log_uniform(rng, *prefixes),
        prefix_tokens=log_uniform(rng, *prefix_tokens) if any(prefix_tokens) else 0,
        skew=skew,
        chunks=chunks,
        turns=turns,
        message_tokens=log_uniform(rng, *message_tokens),
        sigma=sigma,
        answer_tokens=log_uniform(rng, *answer_tokens),
        think_seconds=rng.uniform(*think_seconds),
    )
