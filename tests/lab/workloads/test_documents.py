"""Batches of questions on a few huge documents."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest

from extproc.lab.workloads.documents import NUMBERS, document_batch
from extproc.lab.workloads.workload import Turn, Workload


@pytest.fixture(scope="module", params=NUMBERS)
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def workload(number: int) -> Workload:
    return document_batch(number, seed=1)


def turns(workload: Workload) -> list[Turn]:
    return [session.turns[0] for session in workload.sessions]


def test_1200_questions_of_one_turn_run_128_at_a_time(workload: Workload) -> None:
    assert {len(session.turns) for session in workload.sessions} == {1}
    assert (len(workload.sessions), workload.concurrency) == (1_200, 128)
    assert workload.is_closed


def test_each_document_of_60000_tokens_has_an_equal_share(workload: Workload, number: int) -> None:
    documents = Counter(turn.prompt[1] for turn in turns(workload))
    assert {document.tokens for document in documents} == {60_000}
    assert len(documents) == number
    assert min(documents.values()) > 0.8 * 1_200 / number


def test_questions_differ_and_are_short(workload: Workload) -> None:
    questions = {turn.prompt[2] for turn in turns(workload)}
    assert len(questions) == 1_200
    assert 50 <= fmean(question.tokens for question in questions) <= 70


def test_answers_have_150_tokens_on_average(workload: Workload) -> None:
    assert 135 <= fmean(turn.output.tokens for turn in turns(workload)) <= 165


def test_the_seed_determines_the_workload(number: int) -> None:
    assert document_batch(number, 1) == document_batch(number, 1) != document_batch(number, 2)
