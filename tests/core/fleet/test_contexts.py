from __future__ import annotations

from math import e

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from extproc.core.fleet.contexts import LEAST_SECONDS, MOST_SECONDS, Context, Contexts, Stored
from tests.core.clock import Clock
from tests.extent import extent

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contexts(clock: Clock) -> Contexts:
    return Contexts(clock)


def held(contexts: Contexts) -> dict[str, float]:
    """Return the tokens of the prompts in flight."""
    tokens = {address: contexts.totals.of(address).context for address in (A, B)}
    return {address: number for address, number in tokens.items() if number}


def paused(contexts: Contexts) -> dict[str, float]:
    """Return the number of paused sessions now."""
    contexts.expire()
    sessions = {address: contexts.totals.of(address).paused for address in (A, B)}
    return {address: number for address, number in sessions.items() if number}


def talk(
    contexts: Contexts, clock: Clock, pause: float, turns: int = 2, service: float = 0.0
) -> None:
    """Begin and end requests of one session with pauses between them."""
    for turn in range(turns):
        clock.now += pause if turn else 0.0
        context = contexts.begin(A, Stored(1), 100)
        clock.now += service
        context.end()


def test_sessions_end_although_nothing_asks_for_them(contexts: Contexts, clock: Clock) -> None:
    for run in range(1, 1_000):
        contexts.begin(A, Stored(run), 100).end()
        clock.now += 1.0
    assert contexts.totals.of(A).paused + len(contexts._late) <= 2 * MOST_SECONDS


class TestPromptInFlight:
    def test_counts_until_its_request_ends(self, contexts: Contexts) -> None:
        one, other = contexts.begin(A, Stored(1), 100), contexts.begin(A, Stored(2), 20)
        assert held(contexts) == {A: 120}
        one.end()
        assert held(contexts) == {A: 20}
        other.end()
        assert held(contexts) == {}

    def test_moves_with_its_request(self, contexts: Contexts) -> None:
        context = contexts.begin(A, Stored(1), 100)
        context.move(B)
        assert held(contexts) == {B: 100}
        context.end()
        assert held(contexts) == {}

    def test_is_kept_if_its_endpoint_leaves(self, contexts: Contexts) -> None:
        context = contexts.begin(A, Stored(1), 100)
        contexts.forget(A)
        assert held(contexts) == {A: 100}
        context.end()
        assert held(contexts) == {}


class TestSharing:
    def test_counts_requests_in_flight_with_the_prefix(self, contexts: Contexts) -> None:
        one = contexts.begin(A, Stored(1, prefix=7), 100)
        other = contexts.begin(B, Stored(2, prefix=7), 100)
        contexts.begin(B, Stored(3, prefix=8), 100)
        contexts.begin(B, Stored(4), 100)
        assert (contexts.sharing(7), contexts.sharing(8)) == (2, 1)
        one.end()
        other.end()
        assert (contexts.sharing(7), contexts.sharing(8)) == (0, 1)

    def test_counts_later_turns_for_the_prefix_that_their_session_began_with(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        contexts.begin(A, Stored(1, prefix=7), 100).end()
        for history in (21, 22):
            clock.now += 5
            turn = contexts.begin(A, Stored(1, prefix=history), 100)
            assert (contexts.sharing(7), contexts.sharing(history)) == (1, 0)
            turn.end()
        assert contexts.sharing(7) == 0

    def test_counts_turns_of_an_ended_session_for_their_own_prefix(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        contexts.begin(A, Stored(1, prefix=7), 100).end()
        clock.now += MOST_SECONDS
        contexts.expire()
        contexts.begin(A, Stored(1, prefix=21), 100)
        assert (contexts.sharing(7), contexts.sharing(21)) == (0, 1)


class TestPausedSession:
    def test_counts_from_its_response_to_its_next_request(self, contexts: Contexts) -> None:
        contexts.begin(A, Stored(1), 100).end()
        assert paused(contexts) == {A: 1}
        assert contexts.pauses((A, 1))
        contexts.begin(A, Stored(1), 100)
        assert paused(contexts) == {}
        assert not contexts.pauses((A, 1))

    def test_counts_once_after_several_requests_at_a_time(self, contexts: Contexts) -> None:
        both = [contexts.begin(A, Stored(1), 100), contexts.begin(A, Stored(1), 100)]
        for context in both:
            context.end()
        assert paused(contexts) == {A: 1}

    def test_is_not_continued_by_another_session(self, contexts: Contexts) -> None:
        contexts.begin(A, Stored(1), 100).end()
        contexts.begin(A, Stored(2), 100)
        contexts.begin(B, Stored(1), 100)
        assert paused(contexts) == {A: 1}

    def test_is_unknown_after_a_retry_on_another_endpoint(self, contexts: Contexts) -> None:
        context = contexts.begin(A, Stored(1), 100)
        context.move(B)
        context.end()
        assert paused(contexts) == {}

    def test_is_unknown_for_prompts_without_blocks(self, contexts: Contexts) -> None:
        for _ in range(3):
            contexts.begin(A, Stored(), 10).end()
        assert paused(contexts) == {}
        assert contexts.continued == 0

    def test_counts_for_a_minute_while_nothing_is_known(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        contexts.begin(A, Stored(1), 100).end()
        clock.now += MOST_SECONDS - 1
        assert paused(contexts) == {A: 1}
        clock.now += 2
        assert paused(contexts) == {}

    def test_counts_for_twice_the_mean_pause(self, contexts: Contexts, clock: Clock) -> None:
        talk(contexts, clock, pause=5, turns=50)
        clock.now += 9.5
        assert paused(contexts) == {A: 1}
        clock.now += 1
        assert paused(contexts) == {}

    def test_counts_for_the_least_time_if_requests_follow_at_once(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        talk(contexts, clock, pause=0.001, turns=50)
        clock.now += 0.9 * LEAST_SECONDS
        assert paused(contexts) == {A: 1}
        clock.now += 0.2 * LEAST_SECONDS
        assert paused(contexts) == {}

    def test_is_less_probable_to_continue_the_longer_ago_its_last_request_began(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        assert contexts.continued_after(0) == 0
        talk(contexts, clock, pause=5, service=20, turns=50)
        assert contexts.continued_after(0) == contexts.continued > 0.9
        assert contexts.continued_after(50) == pytest.approx(contexts.continued / e, rel=0.05)

    def test_of_an_endpoint_that_left_takes_no_memory(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        before = contexts.totals.of(A)
        context = contexts.begin(A, Stored(1), 100)
        contexts.forget(A)
        context.end()
        clock.now += MOST_SECONDS
        contexts.expire()
        contexts.totals.keep_only([])
        assert contexts.totals.of(A) is not before

    def test_is_forgotten_with_its_endpoint(self, contexts: Contexts) -> None:
        contexts.begin(A, Stored(1), 100).end()
        contexts.begin(B, Stored(1), 100).end()
        contexts.forget(A)
        assert paused(contexts) == {B: 1}


class TestShareOfContinuedSessions:
    def test_is_zero_at_first(self, contexts: Contexts) -> None:
        contexts.begin(A, Stored(1), 100).end()
        assert contexts.continued == 0

    def test_is_one_if_each_session_continues(self, contexts: Contexts, clock: Clock) -> None:
        talk(contexts, clock, pause=5, turns=9)
        assert contexts.continued == 1

    def test_includes_sessions_that_continue_late(self, contexts: Contexts, clock: Clock) -> None:
        talk(contexts, clock, pause=5, turns=9)
        clock.now += 50
        assert paused(contexts) == {}
        contexts.begin(A, Stored(1), 100)
        clock.now += MOST_SECONDS
        contexts.expire()
        assert contexts.continued == 1

    def test_falls_if_sessions_end(self, contexts: Contexts, clock: Clock) -> None:
        talk(contexts, clock, pause=5)
        clock.now += MOST_SECONDS
        contexts.expire()
        assert contexts.continued == 0.5

    def test_is_small_at_first_if_few_of_many_sessions_continue(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        talk(contexts, clock, pause=1, turns=5)
        for number in range(36):
            contexts.begin(A, Stored(1_000 + number), 100).end()
        clock.now += 5
        contexts.expire()
        assert contexts.continued <= 0.1

    def test_follows_recent_sessions(self, contexts: Contexts, clock: Clock) -> None:
        talk(contexts, clock, pause=1, turns=300)
        for number in range(900):
            contexts.begin(A, Stored(1_000 + number), 100).end()
            clock.now += MOST_SECONDS
            contexts.expire()
        assert contexts.continued < 0.05


class TestShareInFlight:
    def test_is_that_of_requests_in_the_time_of_sessions(
        self, contexts: Contexts, clock: Clock
    ) -> None:
        for _ in range(50):
            context = contexts.begin(A, Stored(1), 100)
            clock.now += 2
            context.end()
            clock.now += 6
        assert contexts.share_in_flight == pytest.approx(0.25, rel=0.01)

    def test_is_zero_at_first(self, contexts: Contexts) -> None:
        assert contexts.share_in_flight == 0


class ContextsMachine(RuleBasedStateMachine):
    """Begin, move and end requests in any order, and compare with plain lists."""

    begun = Bundle("begun")
    addresses = st.sampled_from([A, B])

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.contexts = Contexts(self.clock)
        self.inflight: list[Context] = []
        self.pauses: dict[tuple[str, int], float] = {}

    @rule(
        target=begun,
        address=addresses,
        run=st.integers(1, 3),
        prefix=st.sampled_from([None, 7, 8]),
        tokens=st.integers(0, 9),
    )
    def begin(self, address: str, run: int, prefix: int | None, tokens: int) -> Context:
        context = self.contexts.begin(address, Stored(run, prefix), tokens)
        self.inflight.append(context)
        self.pauses.pop((address, run), None)
        return context

    @rule(context=begun, address=addresses)
    def move(self, context: Context, address: str) -> None:
        if context in self.inflight:
            context.move(address)

    @rule(context=consumes(begun))
    def end(self, context: Context) -> None:
        context.end()
        self.inflight.remove(context)
        if context.run:
            self.pauses[context.address, context.run] = self.clock.now

    @rule(address=addresses)
    def forget(self, address: str) -> None:
        self.contexts.forget(address)
        self.pauses = {one: at for one, at in self.pauses.items() if one[0] != address}

    @rule(seconds=st.sampled_from([0.1, 10.0, 25.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def tokens_are_those_of_the_prompts_in_flight(self) -> None:
        for address in (A, B):
            tokens = sum(one.tokens for one in self.inflight if one.address == address)
            assert self.contexts.totals.of(address).context == tokens

    @invariant()
    def each_request_in_flight_shares_at_most_one_prefix(self) -> None:
        for prefix in (7, 8):
            sharing = sum(one.prefix == prefix for one in self.inflight)
            assert self.contexts.sharing(prefix) == sharing

    @invariant()
    def paused_sessions_are_recent(self) -> None:
        ages = {one: self.clock.now - at for one, at in self.pauses.items()}
        counts = paused(self.contexts)
        for address in (A, B):
            mine = [age for (where, _), age in ages.items() if where == address]
            sure = sum(age < LEAST_SECONDS for age in mine)
            possible = sum(age < MOST_SECONDS for age in mine)
            assert sure <= counts.get(address, 0) <= possible

    @invariant()
    def shares_are_between_zero_and_one(self) -> None:
        assert 0 <= self.contexts.continued <= 1
        assert 0 <= self.contexts.share_in_flight <= 1


TestContexts = ContextsMachine.TestCase
TestContexts.settings = settings(max_examples=extent(15, 100), deadline=None)
