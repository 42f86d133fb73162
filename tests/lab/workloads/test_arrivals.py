"""Pauses between the starts of sessions: Poisson, in bursts, and several sessions at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean, stdev

import pytest

from extproc.lab.workloads import Options, WorkloadError, named
from extproc.lab.workloads.arrivals import pauses
from extproc.lab.workloads.workload import Workload

POISSON = Workload("any", [], requests_per_second=4.0)


def drawn(workload: Workload, number: int = 20_000) -> list[float]:
    return list(islice(pauses(workload, Random(5)), number))


@pytest.mark.parametrize("burstiness", [1.0, 1 / 9, 4.0])
def test_the_mean_is_that_of_the_rate(burstiness: float) -> None:
    assert fmean(drawn(replace(POISSON, burstiness=burstiness))) == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (1 / 9, 3.0), (4.0, 0.5)])
def test_burstiness_determines_the_variation(burstiness: float, variation: float) -> None:
    found = drawn(replace(POISSON, burstiness=burstiness))
    assert stdev(found) / fmean(found) == pytest.approx(variation, rel=0.05)


def test_sessions_start_together_at_the_same_rate() -> None:
    found = drawn(replace(POISSON, at_once=10))
    assert all(pause == 0 for number, pause in enumerate(found, 1) if number % 10)
    assert fmean(found) == pytest.approx(0.25, rel=0.05)


def test_poisson_pauses_are_those_of_a_plain_exponential_distribution() -> None:
    rng = Random(5)
    assert drawn(POISSON, 9) == [rng.expovariate(4.0) for _ in range(9)]


class TestOptions:
    def test_replace_the_workloads_own(self) -> None:
        changed = named("saas", Options(burstiness=0.25, at_once=3))
        assert (changed.burstiness, changed.at_once) == (0.25, 3)

    @pytest.mark.parametrize(
        ("option", "options"),
        [("burstiness", Options(burstiness=2.0)), ("at_once", Options(at_once=2))],
    )
    def test_are_refused_without_a_rate(self, option: str, options: Options) -> None:
        with pytest.raises(WorkloadError, match=f"codegen has no option {option}"):
            named("codegen", options)
