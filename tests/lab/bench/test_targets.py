"""Verdicts on the targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab.bench.targets import FAST, TARGETS, Target, grid
from extproc.lab.bench.ways import SGLANG
from tests.lab.bench.results_made_up import made_up


def measured(*without: str) -> list[list[str]]:
    return [list(row) for row in grid(made_up(*without)).rows]


def test_figures_come_from_the_rows() -> None:
    assert [row[1] for row in measured()] == [
        *("60.0", "0.10", "0.75", "0.80", "0.40", "1.00", "0.00", "90.0", "20.0", "101"),
    ]


def test_a_figure_at_the_limit_meets_the_target() -> None:
    assert [row[3] for row in measured()] == ["yes"] * 9 + ["**no**"]


def test_missing_figures_are_not_measured() -> None:
    assert [row[1] for row in measured(FAST)][:8] == ["not measured"] * 8
    assert [row[1] for row in measured(SGLANG)].count("not measured") == 1


def test_fewer_concurrent_streams_do_not_count() -> None:
    results = made_up()
    held = [replace(one, at_once=7_999) for one in results.held]
    (target,) = (one for one in TARGETS if "8,000 streams" in one.what)
    assert target.value(results) == 90
    assert target.value(replace(results, held=held)) is None


@pytest.mark.parametrize(("value", "at_most", "holds"), [(2, True, False), (2, False, True)])
def test_a_limit_is_a_maximum_or_a_minimum(value: float, at_most: bool, holds: bool) -> None:
    assert Target("", 1, lambda results: None, at_most).holds(value) is holds
