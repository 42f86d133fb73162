"""Retrieval with many chunks in varying order."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from statistics import fmean

import pytest

from extproc.lab.workloads.deep_rag import deep_rag
from extproc.lab.workloads.workload import Segment, Turn


@pytest.fixture(scope="module", params=range(2))
def turns(request: pytest.FixtureRequest) -> list[Turn]:
    return [session.turns[0] for session in deep_rag(seed=request.param).sessions]


def chunks(turn: Turn) -> tuple[Segment, ...]:
    return turn.prompt[1:-1]


def topic(turn: Turn) -> str:
    return chunks(turn)[0].name.split("/")[1]


def test_a_prompt_has_8_to_20_chunks_of_500_to_1000_tokens(turns: list[Turn]) -> None:
    numbers = [len(chunks(turn)) for turn in turns]
    assert (min(numbers), max(numbers)) == (8, 20)
    assert all(500 <= one.tokens <= 1_000 for turn in turns for one in chunks(turn))
    assert 10_000 <= fmean(turn.prompt_tokens for turn in turns) <= 11_500


def test_the_system_prompt_is_short_and_the_same_for_all(turns: list[Turn]) -> None:
    assert {turn.prompt[0] for turn in turns} == {Segment("rag/system", 400, "system")}


def test_the_most_popular_topics_have_zipfs_share(turns: list[Turn]) -> None:
    popular = Counter(map(topic, turns)).most_common()
    assert 0.12 <= popular[0][1] / len(turns) <= 0.22
    assert 0.4 <= sum(times for _, times in popular[:10]) / len(turns) <= 0.6
    assert len(popular) > 150


def test_two_prompts_on_a_topic_agree_in_their_first_chunk_in_two_of_three_cases(
    turns: list[Turn],
) -> None:
    by_topic = defaultdict(list)
    for turn in turns:
        by_topic[topic(turn)].append(chunks(turn))
    pairs = [pair for prompts in by_topic.values() for pair in pairwise(prompts)]
    agreeing = sum(before[0] == after[0] for before, after in pairs)
    assert 0.55 <= agreeing / len(pairs) <= 0.75
    assert sum(before[:4] == after[:4] for before, after in pairs) < 0.3 * len(pairs)


def test_pace_scales_the_rate() -> None:
    assert (deep_rag().requests_per_second, deep_rag(pace=2.0).requests_per_second) == (12, 24)


def test_the_seed_determines_the_workload() -> None:
    assert deep_rag(seed=1) == deep_rag(seed=1) != deep_rag(seed=2)
