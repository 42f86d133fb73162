from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from extproc.core.fleet.backlog import Backlog, Prefill
from tests.core.builders import thorough
from tests.extent import extent

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def left(backlog: Backlog) -> dict[str, float]:
    return dict(backlog.tokens)


class TestWhatIsToBeComputed:
    def test_is_nothing_at_first(self) -> None:
        assert left(Backlog()) == {}

    def test_adds_up_by_endpoint(self) -> None:
        backlog = Backlog()
        for address, tokens in ((A, 100), (B, 7), (A, 20)):
            backlog.add(address, tokens)
        assert left(backlog) == {A: 120, B: 7}

    def test_of_a_prompt_that_is_cached_is_nothing(self) -> None:
        # Predictions are made of quotients: a rounding error must not become a debt.
        backlog = Backlog()
        backlog.add(A, 0)
        backlog.add(A, -1e-9)
        assert left(backlog) == {A: 0}


class TestAnAnswerThatBegins:
    def test_takes_off_its_prompt_and_those_that_came_before(self) -> None:
        # Engines admit requests in the order in which they come.
        backlog = Backlog()
        _, second, _ = (backlog.add(A, tokens) for tokens in (100, 20, 3))
        second.finish()
        assert left(backlog) == {A: 3}

    def test_takes_nothing_off_other_endpoints(self) -> None:
        backlog = Backlog()
        backlog.add(B, 100)
        backlog.add(A, 20).finish()
        assert left(backlog) == {B: 100}

    def test_counts_once(self) -> None:
        backlog = Backlog()
        first = backlog.add(A, 100)
        first.finish()
        backlog.add(A, 20)
        first.finish()
        first.cancel()
        assert left(backlog) == {A: 20}

    def test_of_one_that_was_taken_off_takes_nothing_more(self) -> None:
        backlog = Backlog()
        first, second, _ = (backlog.add(A, tokens) for tokens in (100, 20, 3))
        second.finish()
        first.finish()
        assert left(backlog) == {A: 3}


class TestARequestThatEnds:
    def test_takes_off_its_own_prompt_only(self) -> None:
        # A client that hangs up says nothing of those that wait before it.
        backlog = Backlog()
        _, second, _ = (backlog.add(A, tokens) for tokens in (100, 20, 3))
        second.cancel()
        assert left(backlog) == {A: 103}

    def test_counts_once(self) -> None:
        backlog = Backlog()
        first, _ = (backlog.add(A, tokens) for tokens in (100, 20))
        first.cancel()
        first.cancel()
        first.finish()
        assert left(backlog) == {A: 20}

    def test_leaves_nothing_behind_when_it_was_the_last(self) -> None:
        backlog = Backlog()
        # Sums of these do not come back to zero by themselves.
        prefills = [backlog.add(A, tokens) for tokens in (0.1, 0.2, 0.3, 1e9)]
        for prefill in prefills:
            prefill.cancel()
        assert left(backlog) == {}


class TestAPromptThatMoves:
    def test_is_computed_where_it_went(self) -> None:
        backlog = Backlog()
        first, _ = (backlog.add(A, tokens) for tokens in (100, 20))
        first.move(B)
        assert left(backlog) == {A: 20, B: 100}
        assert first.address == B
        first.finish()
        assert left(backlog) == {A: 20}

    def test_stands_behind_those_that_are_there(self) -> None:
        backlog = Backlog()
        first = backlog.add(A, 100)
        there = backlog.add(B, 20)
        first.move(B)
        there.finish()
        assert left(backlog) == {B: 100}

    def test_does_not_when_it_is_computed_or_nobody_waits_for_it(self) -> None:
        backlog = Backlog()
        done, gone = backlog.add(A, 100), backlog.add(A, 20)
        done.finish()
        gone.cancel()
        done.move(B)
        gone.move(B)
        assert left(backlog) == {}

    def test_to_where_it_is_already_is_no_more_work(self) -> None:
        backlog = Backlog()
        backlog.add(A, 100).move(A)
        assert left(backlog) == {A: 100}


class TestAnEngineThatTellsHowManyHaveYetToBegin:
    """Where nobody sees answers begin."""

    def test_has_begun_the_oldest(self) -> None:
        backlog = Backlog()
        for tokens in (1000, 200, 30, 4):
            backlog.add(A, tokens)
        for number, waiting in ((2, 34), (2, 34), (1, 4)):
            backlog.at_most(A, number)
            assert left(backlog) == {A: waiting}
        backlog.at_most(A, 0)
        assert left(backlog) == {}

    @pytest.mark.parametrize("number", [2, 3, 1000])
    def test_may_have_more_than_came_by_here(self, number: int) -> None:
        backlog = Backlog()
        backlog.add(A, 100)
        backlog.add(A, 20)
        backlog.at_most(A, number)
        assert left(backlog) == {A: 120}

    def test_says_nothing_of_others(self) -> None:
        backlog = Backlog()
        backlog.add(A, 100)
        backlog.at_most(B, 0)
        assert left(backlog) == {A: 100}
        backlog.add(B, 20)
        assert left(backlog) == {A: 100, B: 20}

    def test_says_nothing_of_those_that_come_later(self) -> None:
        backlog = Backlog()
        backlog.add(A, 100)
        backlog.at_most(A, 0)
        backlog.add(A, 20)
        backlog.add(A, 3)
        assert left(backlog) == {A: 23}

    def test_may_say_so_before_the_answer_begins_or_ends(self) -> None:
        for tell in (Prefill.finish, Prefill.cancel):
            backlog = Backlog()
            first = backlog.add(A, 100)
            backlog.add(A, 20)
            backlog.at_most(A, 1)
            tell(first)
            assert left(backlog) == {A: 20}
            first.move(B)
            assert left(backlog) == {A: 20}

    def test_may_say_so_after_the_answer_has_begun_or_ended(self) -> None:
        for tell in (Prefill.finish, Prefill.cancel):
            backlog = Backlog()
            first = backlog.add(A, 100)
            backlog.add(A, 20)
            tell(first)
            backlog.at_most(A, 1)
            assert left(backlog) == {A: 20}

    def test_never_saw_one_that_went_elsewhere(self) -> None:
        backlog = Backlog()
        backlog.add(A, 100).move(B)
        backlog.add(A, 20)
        backlog.at_most(A, 1)
        assert left(backlog) == {A: 20, B: 100}

    @thorough
    @given(
        st.lists(st.sampled_from(["sent", "first", "end", "lost", "asked"]), max_size=60),
        st.booleans(),
    )
    def test_has_what_waits_in_it_whatever_is_seen_meanwhile(
        self, events: list[str], shown: bool
    ) -> None:
        """All requests come by here; `shown`: Envoy shows answers, too."""
        backlog = Backlog()
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


class TestAnEndpointThatLeaves:
    def test_has_nothing_to_compute(self) -> None:
        backlog = Backlog()
        backlog.add(A, 100)
        backlog.add(B, 20)
        backlog.forget(A)
        assert left(backlog) == {B: 20}

    def test_has_nothing_of_it_when_it_comes_back(self) -> None:
        backlog = Backlog()
        before, moved = backlog.add(A, 100), backlog.add(A, 200)
        backlog.forget(A)
        backlog.add(A, 20)
        before.finish()
        before.cancel()
        moved.move(B)
        assert left(backlog) == {A: 20}

    def test_may_leave_twice_or_never_have_come(self) -> None:
        backlog = Backlog()
        backlog.add(A, 100)
        for address in (A, A, B):
            backlog.forget(address)
        assert left(backlog) == {}

    def test_leaves_nothing_behind(self) -> None:
        backlog = Backlog()
        for number in range(100):
            backlog.add(f"10.0.0.{number}:8000", 100).finish()
            backlog.forget(f"10.0.0.{number}:8000")
        assert not backlog._queues


addresses = st.sampled_from([A, B, C])
tokens = st.floats(0, 1e6)


class BacklogMachine(RuleBasedStateMachine):
    """Against the plain definition: for each endpoint the prompts that wait, in their order."""

    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog()
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

    @rule(address=addresses)
    def forget(self, address: str) -> None:
        self.backlog.forget(address)
        self.queues[address].clear()

    @invariant()
    def all_that_wait_are_counted_and_nothing_else(self) -> None:
        waiting = {a: sum(p.tokens for p in queue) for a, queue in self.queues.items() if queue}
        assert left(self.backlog) == pytest.approx(waiting, abs=1e-3)

    def teardown(self) -> None:
        for queue in self.queues.values():
            for prefill in tuple(queue):
                prefill.cancel()
        assert left(self.backlog) == {}


TestBacklog = BacklogMachine.TestCase
TestBacklog.settings = settings(max_examples=extent(25, 100))
