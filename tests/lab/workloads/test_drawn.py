"""Workloads of any shape."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from extproc.lab.workloads.drawn import Shape, sessions
from extproc.lab.workloads.workload import Session

SHAPE = Shape(
    prefixes=5,
    prefix_tokens=1_000,
    skew=1.0,
    chunks=1,
    turns=(2, 6),
    message_tokens=100,
    sigma=0.5,
    answer_tokens=50,
    think_seconds=4.0,
)


def drawn(shape: Shape, number: int = 400, most_tokens: int = 50_000) -> list[Session]:
    return sessions(shape, number, Random(3), most_tokens)


def test_sessions_begin_with_one_of_the_prefixes_by_zipfs_law() -> None:
    firsts = Counter(session.turns[0].prompt[0] for session in drawn(SHAPE))
    assert {prefix.tokens for prefix in firsts} == {1_000}
    assert len(firsts) == 5
    times = sorted(firsts.values(), reverse=True)
    assert times[0] / times[4] == pytest.approx(5, rel=0.5)


def test_without_prefix_tokens_sessions_share_nothing() -> None:
    prompts = [session.turns[0].prompt for session in drawn(replace(SHAPE, prefix_tokens=0))]
    assert len({prompt[0].name for prompt in prompts}) == len(prompts)


def test_turns_and_lengths_have_the_asked_means() -> None:
    found = drawn(SHAPE)
    turns = [turn for session in found for turn in session.turns]
    assert {len(session.turns) for session in found} == {2, 3, 4, 5, 6}
    assert fmean(turn.prompt[-1].tokens for turn in turns) == pytest.approx(100, rel=0.1)
    assert fmean(turn.output.tokens for turn in turns) == pytest.approx(50, rel=0.1)
    pauses = [turn.think_seconds for turn in turns if turn.think_seconds]
    assert fmean(pauses) == pytest.approx(4, rel=0.1)


def test_each_turn_sends_the_whole_conversation() -> None:
    for session in drawn(SHAPE):
        for before, after in pairwise(session.turns):
            assert after.prompt[:-1] == (*before.prompt, before.output)


def test_the_order_of_chunks_varies() -> None:
    found = drawn(replace(SHAPE, chunks=4, prefixes=1))
    orders = Counter(session.turns[0].prompt[:4] for session in found)
    assert len(orders) > 4
    assert {frozenset(order) for order in orders} == {frozenset(next(iter(orders)))}


def test_sessions_end_before_the_longest_context() -> None:
    found = drawn(SHAPE, most_tokens=1_400)
    longest = [one.turns[-1].prompt_tokens + one.turns[-1].output.tokens for one in found]
    assert (
        max(tokens for tokens, one in zip(longest, found, strict=True) if len(one.turns) > 1)
        <= 1_400
    )


def test_the_generator_determines_the_sessions() -> None:
    assert drawn(SHAPE) == drawn(SHAPE)
