"""The LoRA workloads: numbers of requests and their adapters."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from extproc.lab.workloads.lora import lora
from extproc.lab.workloads.workload import Workload


def asked(workload: Workload) -> list[str]:
    return [session.turns[0].adapter for session in workload.sessions]


def test_without_adapters_requests_use_the_base_model() -> None:
    assert lora(0).adapters == []


@pytest.mark.parametrize("adapters", [4, 10])
def test_adapters_have_equal_shares(adapters: int) -> None:
    times = Counter(asked(lora(adapters)))
    assert len(times) == adapters
    assert all(abs(count - 1_000 / adapters) < 70 for count in times.values())


def test_a_connection_changes_adapters() -> None:
    names = asked(lora(10))
    assert sum(a == b for a, b in pairwise(names)) < 150


def test_the_three_workloads_differ_only_in_adapters() -> None:
    base, ten = lora(0), lora(10)
    plain = [session.turns[0]._replace(adapter="") for session in ten.sessions]
    assert plain == [session.turns[0] for session in base.sessions]


def test_40_connections_use_10_pods_in_a_closed_loop() -> None:
    workload = lora(4)
    assert (workload.concurrency, workload.replicas) == (40, 10)
    assert workload.requests_per_second is None
    assert all(len(session.turns) == 1 for session in workload.sessions)


def test_lengths_are_the_inferred_ones() -> None:
    workload = lora(4)
    assert workload.requests == 1_000
    assert 350 <= workload.output_tokens / 1_000 <= 420
    assert workload.prompt_tokens / 1_000 == pytest.approx(250, rel=0.1)


def test_prompts_share_nothing() -> None:
    prompts = [session.turns[0].prompt for session in lora(4).sessions]
    assert len({segment.name for prompt in prompts for segment in prompt}) == 1_000


def test_the_seed_determines_the_workload() -> None:
    assert lora(10, seed=1) == lora(10, seed=1)
    assert lora(10, seed=1) != lora(10, seed=2)
