"""Random trials: drawn from their number, within the stated ranges, and possible to simulate."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random

import pytest

from extproc.lab.measures.serving import summarize
from extproc.lab.simulation.simulation import simulate
from extproc.lab.tables import random_trials
from extproc.lab.tables.contenders import CONTENDERS, OURS
from extproc.lab.tables.random_kinds import CLOSED, KINDS
from extproc.lab.tables.random_trials import RandomTrial, random_trial


@pytest.fixture(scope="module")
def trials() -> list[RandomTrial]:
    return [random_trial(number) for number in range(1, 13)]


def test_the_number_determines_the_trial() -> None:
    assert random_trial(4) == random_trial(4) != random_trial(5)


def test_fleets_and_loads_are_within_their_ranges(trials: list[RandomTrial]) -> None:
    for trial in trials:
        assert 4 <= trial.workload.replicas <= 64
        assert 0.4 <= trial.load <= 1.2
        assert not 0.95 < trial.load < 1.0


def test_the_longest_context_fits_twice_into_the_smallest_cache(trials: list[RandomTrial]) -> None:
    for trial in trials:
        smallest = min(one.kv_tokens for one in (trial.engine, *trial.others.values()))
        turns = [turn for session in trial.workload.sessions for turn in session.turns]
        assert max(turn.prompt_tokens + turn.output.tokens for turn in turns) <= smallest * 0.6


def test_a_trial_has_either_a_rate_or_concurrent_sessions(trials: list[RandomTrial]) -> None:
    for trial in trials:
        is_closed = trial.workload.requests_per_second is None
        assert is_closed == (trial.kind in CLOSED) == (trial.workload.concurrency is not None)


def test_trials_have_a_bounded_number_of_requests(trials: list[RandomTrial]) -> None:
    assert all(400 <= trial.workload.requests <= 4_000 for trial in trials)


def test_trials_have_all_kinds_and_different_fleets(trials: list[RandomTrial]) -> None:
    assert {trial.kind for trial in trials} == set(KINDS)
    assert len({trial.workload.replicas for trial in trials}) >= 6
    assert any(trial.others for trial in trials)
    assert len({trial.description for trial in trials}) == len(trials)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_shape_and_states_its_ranges(kind: str) -> None:
    shape = KINDS[kind](Random(1))
    assert shape.turns[0] <= shape.turns[1]
    assert KINDS[kind].__doc__


def test_an_engine_that_dies_returns_later() -> None:
    trial = next(one for one in map(random_trial, count()) if one.events)
    leave, join = trial.events
    assert 0 < leave.at < join.at
    assert leave.number == join.number < trial.workload.replicas


def test_a_trial_runs_to_its_end_for_any_contender(trials: list[RandomTrial]) -> None:
    trial = next(one for one in trials if one.kind == "distinct")
    few = replace(trial.workload, sessions=trial.workload.sessions[:60])
    for name in ("LeastLoad", "LMetric", OURS):
        asked = random_trials.scenario(trial._replace(workload=few, events=()), CONTENDERS[name])
        assert summarize(simulate(asked)).completed == 60
