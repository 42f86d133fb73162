"""The estimate of a fleet's capacity."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from extproc.lab.engine.profile import named
from extproc.lab.tables.capacity import Capacity, capacity
from extproc.lab.workloads.drawn import Shape, sessions
from extproc.lab.workloads.workload import Workload

SHAPE = Shape(
    prefixes=1,
    prefix_tokens=2_000,
    skew=0.0,
    chunks=1,
    turns=(1, 1),
    message_tokens=200,
    sigma=0.5,
    answer_tokens=100,
    think_seconds=0.0,
)


def estimate(shape: Shape, *fleet: str) -> Capacity:
    engines = [named(f"{name}-llama-3.1-8b") for name in fleet]
    workload = Workload("any", sessions(shape, 200, Random(1), 100_000))
    return capacity(workload, shape, engines)


def test_engines_add_up() -> None:
    one, other = estimate(SHAPE, "h100"), estimate(SHAPE, "l40s")
    both = estimate(SHAPE, "h100", "l40s")
    sums = one.requests_per_second + other.requests_per_second
    assert both.requests_per_second == pytest.approx(sums)
    assert both.contexts == pytest.approx(one.contexts + other.contexts)
    assert one.requests_per_second > other.requests_per_second


def test_shared_prefixes_add_capacity() -> None:
    alone = replace(SHAPE, prefixes=200, skew=0.0)
    assert estimate(SHAPE, "h100").requests_per_second > estimate(alone, "h100").requests_per_second


def test_long_answers_take_capacity() -> None:
    long = estimate(replace(SHAPE, answer_tokens=400), "h100")
    short = estimate(SHAPE, "h100")
    assert long.requests_per_second < short.requests_per_second
    assert long.response_seconds > short.response_seconds
