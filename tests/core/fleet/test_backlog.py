from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from extproc.core.fleet.backlog import STEP_TOKENS, Backlog, Prefill
from extproc.core.fleet.speeds import Speeds
from tests.core.builders import thorough
from tests.core.clock import Clock
from tests.extent import extent

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def left(backlog: Backlog) -> dict[str, float]:
    return dict(backlog.tokens)


class TestTokensToCompute:
    def test_are_zero_at_first(self) -> None:
        assert left(Backlog(Speeds(Clock()))) == {}

    def test_add_up_by_endpoint(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        for address, tokens in ((A, 100), (B, 7), (A, 20)):
            backlog.add(address, tokens)
        assert left(backlog) == {A: 120, B: 7}

    def test_are_zero_for_a_cached_prompt(self) -> None:
        # Predictions come from divisions: a rounding error must not make the backlog negative.
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 0)
        backlog.add(A, -1e-9)
        assert left(backlog) == {A: 0}


class TestMeanPrompt:
    def backlog(self, *prompts: float) -> Backlog:
        backlog = Backlog(Speeds(Clock()))
        for tokens in prompts:
            backlog.add(A, tokens)
        return backlog

    def test_counts_the_first_prompts_alike(self) -> None:
        assert self.backlog(8_000, 0, 1_000).mean == pytest.approx(3_000)

    def test_follows_about_fifty_prompts(self) -> None:
        mean = self.backlog(*[8_000] * 100, *[0] * 50).mean
        assert mean == pytest.approx(8_000 * 0.98**50)


class TestFinish:
    def test_removes_the_prompt_and_all_before_it(self) -> None:
        # Engines admit requests in order of arrival.
        backlog = Backlog(Speeds(Clock()))
        _, second, _ = (backlog.add(A, tokens) for tokens in (100, 20, 3))
        second.finish()
        assert left(backlog) == {A: 3}

    def test_leaves_other_endpoints_unchanged(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(B, 100)
        backlog.add(A, 20).finish()
        assert left(backlog) == {B: 100}

    def test_counts_once(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        first = backlog.add(A, 100)
        first.finish()
        backlog.add(A, 20)
        first.finish()
        first.cancel()
        assert left(backlog) == {A: 20}

    def test_of_a_removed_prompt_removes_nothing(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        first, second, _ = (backlog.add(A, tokens) for tokens in (100, 20, 3))
        second.finish()
        first.finish()
        assert left(backlog) == {A: 3}


class TestCancel:
    def test_removes_only_its_own_prompt(self) -> None:
        # A client that disconnects proves nothing about earlier prompts.
        backlog = Backlog(Speeds(Clock()))
        _, second, _ = (backlog.add(A, tokens) for tokens in (100, 20, 3))
        second.cancel()
        assert left(backlog) == {A: 103}

    def test_counts_once(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        first, _ = (backlog.add(A, tokens) for tokens in (100, 20))
        first.cancel()
        first.cancel()
        first.finish()
        assert left(backlog) == {A: 20}

    def test_of_the_last_prompt_leaves_exactly_zero(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        # Floating-point sums of these do not return to zero exactly.
        prefills = [backlog.add(A, tokens) for tokens in (0.1, 0.2, 0.3, 1e9)]
        for prefill in prefills:
            prefill.cancel()
        assert left(backlog) == {}


class TestMove:
    def test_moves_the_tokens_to_the_other_endpoint(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        first, _ = (backlog.add(A, tokens) for tokens in (100, 20))
        first.move(B)
        assert left(backlog) == {A: 20, B: 100}
        assert first.address == B
        first.finish()
        assert left(backlog) == {A: 20}

    def test_puts_the_prompt_after_those_already_there(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        first = backlog.add(A, 100)
        there = backlog.add(B, 20)
        first.move(B)
        there.finish()
        assert left(backlog) == {B: 100}

    def test_ignores_a_finished_or_canceled_prompt(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        done, gone = backlog.add(A, 100), backlog.add(A, 20)
        done.finish()
        gone.cancel()
        done.move(B)
        gone.move(B)
        assert left(backlog) == {}

    def test_to_the_same_endpoint_changes_no_tokens(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 100).move(A)
        assert left(backlog) == {A: 100}


class TestPromptsSentSince:
    def test_are_those_that_an_endpoint_has_yet_to_compute(self) -> None:
        clock = Clock()
        backlog = Backlog(Speeds(clock))
        at = list[float]()
        for _ in range(3):
            clock.advance(1)
            at.append(clock())
            backlog.add(A, 100)
        assert [backlog.sent_since(A, one) for one in (*at, at[-1] + 1)] == [3, 2, 1, 0]
        assert backlog.sent_since(B, at[0]) == 0

    def test_include_one_that_moves_to_the_endpoint_later(self) -> None:
        clock = Clock()
        backlog = Backlog(Speeds(clock))
        moves = backlog.add(A, 100)
        clock.advance(1)
        began = clock()
        backlog.add(B, 100)
        moves.move(B)
        assert backlog.sent_since(B, began) == 2

    def test_are_known_of_endpoints_that_have_had_prompts(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        assert not backlog.is_known(A)
        backlog.add(A, 100).finish()
        assert backlog.is_known(A)


class TestAtMost:
    """The limit from an engine's counters, if Envoy does not show response bodies."""

    def test_removes_the_oldest_prompts(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        for tokens in (1000, 200, 30, 4):
            backlog.add(A, tokens)
        for number, waiting in ((2, 34), (2, 34), (1, 4)):
            backlog.at_most(A, number)
            assert left(backlog) == {A: waiting}
        backlog.at_most(A, 0)
        assert left(backlog) == {}

    @pytest.mark.parametrize("number", [2, 3, 1000])
    def test_accepts_more_than_this_sidecar_sent(self, number: int) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 100)
        backlog.add(A, 20)
        backlog.at_most(A, number)
        assert left(backlog) == {A: 120}

    def test_leaves_other_endpoints_unchanged(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 100)
        backlog.at_most(B, 0)
        assert left(backlog) == {A: 100}
        backlog.add(B, 20)
        assert left(backlog) == {A: 100, B: 20}

    def test_leaves_later_prompts_unchanged(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 100)
        backlog.at_most(A, 0)
        backlog.add(A, 20)
        backlog.add(A, 3)
        assert left(backlog) == {A: 23}

    def test_may_come_before_the_response_begins_or_ends(self) -> None:
        for tell in (Prefill.finish, Prefill.cancel):
            backlog = Backlog(Speeds(Clock()))
            first = backlog.add(A, 100)
            backlog.add(A, 20)
            backlog.at_most(A, 1)
            tell(first)
            assert left(backlog) == {A: 20}
            first.move(B)
            assert left(backlog) == {A: 20}

    def test_may_come_after_the_response_began_or_ended(self) -> None:
        for tell in (Prefill.finish, Prefill.cancel):
            backlog = Backlog(Speeds(Clock()))
            first = backlog.add(A, 100)
            backlog.add(A, 20)
            tell(first)
            backlog.at_most(A, 1)
            assert left(backlog) == {A: 20}

    def test_ignores_a_prompt_that_moved_to_another_endpoint(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 100).move(B)
        backlog.add(A, 20)
        backlog.at_most(A, 1)
        assert left(backlog) == {A: 20, B: 100}

    @thorough
    @given(
        st.lists(st.sampled_from(["sent", "first", "end", "lost", "asked"]), max_size=60),
        st.booleans(),
    )
    def test_matches_the_engines_queue_after_any_events(
        self, events: list[str], shown: bool
    ) -> None:
        """All requests come from one sidecar; `shown` means that Envoy shows responses, too."""
        backlog = Backlog(Speeds(Clock()))
        waiting: list[Prefill] = []
        answering: list[Prefill] = []
        for number, event in enumerate(events):
            if event == "sent":
                waiting.append(backlog.add(A, 2**number))
            elif event == "first" and waiting:
                answering.append(waiting.pop(0))
                if shown:
                    answering[-1].finish()
            elif event == "end" and answering:
                answering.pop(0).cancel()
            elif event == "lost" and waiting:
                waiting.pop(len(waiting) // 2).cancel()
            elif event == "asked":
                backlog.at_most(A, len(waiting))
                assert left(backlog).get(A, 0) == sum(prefill.tokens for prefill in waiting)
            assert left(backlog).get(A, 0) >= sum(prefill.tokens for prefill in waiting)


def known_speed(tokens: int = 1_500, seconds: float = 1.0) -> tuple[Backlog, Clock]:
    """Return a backlog of an endpoint that has computed such prompts in that time each."""
    clock = Clock()
    speeds = Speeds(clock)
    backlog = Backlog(speeds)
    for _ in range(100):
        backlog.add(A, tokens)
        clock.advance(seconds)
        backlog.at_most(A, 0)
        speeds.observed(A, is_busy=False)
    return backlog, clock


def estimated(backlog: Backlog, address: str = A) -> float:
    """Return the estimate for an endpoint that has prompts."""
    backlog.advance()
    return backlog.totals.of(address).backlog


class TestEstimate:
    """The backlog between two scrapes."""

    def test_falls_with_time(self) -> None:
        backlog, clock = known_speed()
        backlog.add(A, 1_500)
        estimates = [estimated(backlog)]
        for _ in range(5):
            clock.advance(0.1)
            estimates.append(estimated(backlog))
        assert estimates[0] == 1_500 + STEP_TOKENS
        assert all(later < before - 100 for before, later in pairwise(estimates))

    def test_falls_faster_on_a_faster_endpoint(self) -> None:
        left_after = []
        for seconds in (0.5, 1.0, 2.0):
            backlog, clock = known_speed(seconds=seconds)
            backlog.add(A, 1_500)
            clock.advance(0.3)
            left_after.append(estimated(backlog))
        assert left_after == sorted(left_after)
        assert 0 < left_after[0] < left_after[1] < left_after[2] < 1_500 + STEP_TOKENS

    def test_is_made_less_often_for_more_endpoints(self) -> None:
        backlog, clock = known_speed()
        for number in range(999):
            backlog.add(f"other-{number}:8000", 100)
        backlog.add(A, 1_500)
        made = [estimated(backlog)]
        for _ in range(12):
            clock.advance(0.04)
            made.append(estimated(backlog))
        assert len(set(made)) == 3

    def test_ends_at_zero(self) -> None:
        backlog, clock = known_speed()
        backlog.add(A, 1_500)
        clock.advance(60)
        assert estimated(backlog) == 0

    def test_of_a_prompt_after_all_others_includes_another_step(self) -> None:
        backlog, clock = known_speed()
        backlog.add(A, 1_500)
        clock.advance(60)
        assert estimated(backlog) == 0
        backlog.add(A, 1_000)
        assert estimated(backlog) == 1_000 + STEP_TOKENS

    def test_includes_a_step_while_there_are_prompts(self) -> None:
        # Short prompts are computed together, so a second one adds little.
        backlog = Backlog(Speeds(Clock()))
        assert backlog.totals.of(A).backlog == 0
        prefills = [backlog.add(A, 10) for _ in range(2)]
        assert backlog.totals.of(A).backlog == STEP_TOKENS + 20
        for prefill in prefills:
            prefill.finish()
        assert backlog.totals.of(A).backlog == 0

    def test_does_not_fall_while_the_speed_is_unknown(self) -> None:
        clock = Clock()
        backlog = Backlog(Speeds(clock))
        backlog.add(A, 1_500)
        clock.advance(60)
        assert estimated(backlog) == 1_500 + STEP_TOKENS

    def test_begins_with_the_first_prompt(self) -> None:
        backlog, clock = known_speed()
        clock.advance(60)
        backlog.add(A, 1_500)
        assert estimated(backlog) == 1_500 + STEP_TOKENS

    def test_rises_by_the_tokens_of_a_new_prompt(self) -> None:
        backlog, clock = known_speed()
        backlog.add(A, 1_500)
        clock.advance(0.3)
        before = estimated(backlog)
        backlog.add(A, 1_000)
        assert estimated(backlog) == pytest.approx(before + 1_000)

    def test_returns_to_a_prompt_that_metrics_show_as_incomplete(self) -> None:
        # An engine may be slower than usual. The second prompt cannot be complete either.
        backlog, clock = known_speed()
        backlog.add(A, 1_000)
        backlog.add(A, 4_000)
        clock.advance(60)
        assert estimated(backlog) == 0
        backlog.at_most(A, 2)
        assert 3_500 < estimated(backlog) - STEP_TOKENS <= 5_000

    def test_leaves_the_tokens_of_the_prompts_as_they_are(self) -> None:
        backlog, clock = known_speed()
        backlog.add(A, 1_500)
        clock.advance(0.3)
        estimated(backlog)
        assert left(backlog) == {A: 1_500}

    def test_of_a_new_endpoint_falls_at_the_speed_of_the_others(self) -> None:
        backlog, clock = known_speed()
        backlog.add(B, 1_500)
        clock.advance(0.3)
        assert 0 < estimated(backlog, B) < 1_500
        clock.advance(60)
        assert estimated(backlog, B) == 0


class TestForget:
    def test_leaves_no_tokens(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 100)
        backlog.add(B, 20)
        backlog.forget(A)
        assert left(backlog) == {B: 20}

    def test_applies_also_if_the_endpoint_returns(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        before, moved = backlog.add(A, 100), backlog.add(A, 200)
        backlog.forget(A)
        backlog.add(A, 20)
        before.finish()
        before.cancel()
        moved.move(B)
        assert left(backlog) == {A: 20}

    def test_accepts_repeated_and_unknown_endpoints(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        backlog.add(A, 100)
        for address in (A, A, B):
            backlog.forget(address)
        assert left(backlog) == {}

    def test_frees_all_memory_of_the_endpoint(self) -> None:
        backlog = Backlog(Speeds(Clock()))
        for number in range(100):
            backlog.add(f"10.0.0.{number}:8000", 100).finish()
            backlog.forget(f"10.0.0.{number}:8000")
        assert not backlog._queues


addresses = st.sampled_from([A, B, C])
tokens = st.floats(0, 1e6)


class BacklogMachine(RuleBasedStateMachine):
    """Compare with a simple model: an ordered list of waiting prompts for each endpoint."""

    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.backlog, self.clock = known_speed()
        self.queues: defaultdict[str, list[Prefill]] = defaultdict(list)

    def where(self, prefill: Prefill) -> list[Prefill] | None:
        return next((queue for queue in self.queues.values() if prefill in queue), None)

    @rule(target=sent, address=addresses, tokens=tokens)
    def add(self, address: str, tokens: float) -> Prefill:
        prefill = self.backlog.add(address, tokens)
        self.queues[address].append(prefill)
        return prefill

    @rule(prefill=sent)
    def began(self, prefill: Prefill) -> None:
        prefill.finish()
        queue = self.where(prefill)
        if queue is not None:
            del queue[: queue.index(prefill) + 1]

    @rule(prefill=consumes(sent))
    def end(self, prefill: Prefill) -> None:
        prefill.cancel()
        queue = self.where(prefill)
        if queue is not None:
            queue.remove(prefill)

    @rule(prefill=sent)
    def end_twice(self, prefill: Prefill) -> None:
        self.end(prefill)
        self.end(prefill)

    @rule(prefill=sent, address=addresses)
    def move(self, prefill: Prefill, address: str) -> None:
        prefill.move(address)
        queue = self.where(prefill)
        if queue is not None:
            queue.remove(prefill)
            self.queues[address].append(prefill)

    @rule(address=addresses, number=st.integers(0, 3))
    def at_most(self, address: str, number: int) -> None:
        self.backlog.at_most(address, number)
        queue = self.queues[address]
        del queue[: max(0, len(queue) - number)]

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.backlog.advance()

    @rule(address=addresses)
    def forget(self, address: str) -> None:
        self.backlog.forget(address)
        self.queues[address].clear()

    @invariant()
    def only_waiting_prompts_are_counted(self) -> None:
        waiting = {a: sum(p.tokens for p in queue) for a, queue in self.queues.items() if queue}
        assert left(self.backlog) == pytest.approx(waiting, abs=1e-3)

    @invariant()
    def an_estimate_is_at_most_the_prompts(self) -> None:
        for address in (A, B, C):
            queue = self.queues[address]
            most = sum(prefill.tokens for prefill in queue) + (STEP_TOKENS if queue else 0)
            assert -1e-3 <= self.backlog.totals.of(address).backlog <= most + 1e-3

    def teardown(self) -> None:
        for queue in self.queues.values():
            for prefill in tuple(queue):
                prefill.cancel()
        assert left(self.backlog) == {}


TestBacklog = BacklogMachine.TestCase
TestBacklog.settings = settings(max_examples=extent(15, 100))
