"""Each step of an engine computes few prompts, so that the order of requests holds."""

from __future__ import annotations

from extproc.core.fleet.report import Load, Report
from extproc.core.flow_control.prompts import Prompts

ADDRESS = "10.0.0.1:8000"
LIMIT = 100.0


def reading(
    running: float = 10.0,
    waiting: float = 0.0,
    prompts: float | None = None,
    cached: float | None = None,
) -> Report:
    return Report(Load(waiting, 0.3), running, prompt_tokens=prompts, cached_tokens=cached)


def busy(tokens: float = 500.0) -> Prompts:
    """Return the prompts of an endpoint that got one at the time 0."""
    prompts = Prompts()
    prompts.sent(ADDRESS, tokens, 0.0)
    return prompts


def test_an_endpoint_gets_one_long_prompt_for_a_step() -> None:
    prompts = Prompts()
    assert prompts.has_room(ADDRESS, 8000.0)
    prompts.sent(ADDRESS, 8000.0, 0.0)
    assert not prompts.has_room(ADDRESS, 1.0)


def test_an_endpoint_gets_several_short_prompts_for_a_step() -> None:
    prompts = Prompts()
    number = 0
    while prompts.has_room(ADDRESS, 100.0):
        prompts.sent(ADDRESS, 100.0, 0.0)
        number += 1
    assert number == 5


def test_the_end_of_a_response_shows_that_a_step_took_the_prompts_before() -> None:
    prompts = busy()
    prompts.step_ended(ADDRESS, 0.1)
    assert prompts.has_room(ADDRESS, 500.0)


def test_ends_of_the_same_step_do_not_take_a_prompt_that_was_sent_after_the_first() -> None:
    prompts = Prompts()
    prompts.step_ended(ADDRESS, 1.000)
    prompts.sent(ADDRESS, 500.0, 1.001)
    prompts.step_ended(ADDRESS, 1.005)
    assert not prompts.has_room(ADDRESS, 500.0)


def test_a_reading_shows_how_many_prompts_wait() -> None:
    prompts = busy()
    prompts.sent(ADDRESS, 500.0, 0.0)
    prompts.read(ADDRESS, reading(waiting=1), 0.2, LIMIT, 500.0)
    assert not prompts.has_room(ADDRESS, 500.0)
    prompts.read(ADDRESS, reading(waiting=0), 0.4, LIMIT, 500.0)
    assert prompts.has_room(ADDRESS, 500.0)


def test_a_reading_says_nothing_of_later_prompts() -> None:
    prompts = Prompts()
    prompts.sent(ADDRESS, 500.0, 0.3)
    prompts.read(ADDRESS, reading(waiting=0), 0.2, LIMIT, 500.0)
    assert not prompts.has_room(ADDRESS, 500.0)


def test_a_prompt_waits_if_it_came_after_the_step_whose_end_the_reading_shows() -> None:
    prompts = busy()
    prompts.read(ADDRESS, reading(waiting=0), 0.2, LIMIT, 500.0, unseen=1.0)
    assert not prompts.has_room(ADDRESS, 500.0)


def test_a_prompt_waits_no_longer_than_a_step_if_its_client_reads_slowly() -> None:
    prompts = busy()
    prompts.read(ADDRESS, reading(waiting=0), 3.0, LIMIT, 500.0, unseen=1.0)
    assert prompts.has_room(ADDRESS, 500.0)


def test_prompts_of_other_senders_count() -> None:
    prompts = Prompts()
    prompts.read(ADDRESS, reading(waiting=2), 0.2, LIMIT, 500.0)
    assert not prompts.has_room(ADDRESS, 500.0)
    prompts.read(ADDRESS, reading(waiting=0), 0.4, LIMIT, 500.0)
    assert prompts.has_room(ADDRESS, 500.0)


def most(running: float, seconds: int = 60) -> float:
    """Return the tokens for a step after this time with this number of requests in the batch."""
    prompts = Prompts()
    sent = 0.0
    for now in range(seconds):
        sent = 0.0
        while prompts.has_room(ADDRESS, 64.0):
            prompts.sent(ADDRESS, 64.0, float(now))
            sent += 64.0
        prompts.read(ADDRESS, reading(running), now + 0.5, LIMIT, 64.0)
    return sent


def test_a_batch_that_neither_fills_nor_grows_gets_more_prompts_for_each_step() -> None:
    assert most(running=30) == 8192


def test_a_full_batch_gets_no_more() -> None:
    assert most(running=95) == 512


def test_an_engine_that_finds_prompts_in_its_cache_computes_a_share_of_them() -> None:
    prompts = Prompts()
    assert prompts.missed(ADDRESS) == 1.0
    for one in range(200):
        report = reading(prompts=1000.0 * one, cached=900.0 * one)
        prompts.read(ADDRESS, report, 0.2 * one, LIMIT, 500.0)
    assert 0.09 < prompts.missed(ADDRESS) < 0.11


def test_an_endpoint_that_left_is_forgotten() -> None:
    prompts = busy()
    prompts.keep_only(set())
    assert prompts.has_room(ADDRESS, 500.0)
