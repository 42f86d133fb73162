"""The client: its requests, its measured times, and the delays from its own work."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.engine.replica import StepTokens
from extproc.lab.simulation.client import IDEAL, SINGLE_THREADED, Client, ClientCosts
from extproc.lab.simulation.talks import Ask
from extproc.lab.simulation.timeline import Timeline
from extproc.lab.workloads.workload import Session, Workload
from tests.lab.simulation.builders import session, turn, workload

DELAY, GAP = 0.5, 0.25


class Pauses(Random):
    """Pauses without randomness."""

    def __init__(self, *given: float) -> None:
        super().__init__(0)
        self._given = iter(given)

    def expovariate(self, lambd: float = 1.0) -> float:
        return next(self._given)


class Scene:
    """A client, and a server that sends the first token after `DELAY` and one more each `GAP`."""

    def __init__(
        self,
        asked: Workload,
        costs: ClientCosts = IDEAL,
        refused: Collection[int] = (),
        rng: Random | None = None,
    ) -> None:
        self.timeline = Timeline()
        self.arrivals: list[tuple[int, float]] = []
        """Numbers of requests with the times at which they reached the server."""
        self.under_way = self.most_under_way = 0
        self._refused = refused
        self._workload = asked
        self.client = Client(self.timeline, asked, costs, self._send, rng or Random(0))

    def run(self) -> Client:
        self.client.start()
        self.timeline.run(lambda: self.client.over)
        assert self.client.over, "the client waits for something that never comes"
        return self.client

    def _send(self, ask: Ask) -> None:
        now, number = self.timeline.now, ask.number
        self.arrivals.append((number, now))
        if number in self._refused:
            self.client.fail(number)
            return
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        tokens = ask.turn.output.tokens
        for place in range(tokens):
            first = {} if place else {number: 0}
            finished = [number] if place == tokens - 1 else []
            answer = partial(self._answer, StepTokens([number], first, finished))
            self.timeline.at(now + DELAY + place * GAP, answer)

    def _answer(self, tokens: StepTokens) -> None:
        self.under_way -= len(tokens.finished)
        self.client.receive(tokens)


def ask(*sessions: Session, costs: ClientCosts = IDEAL, **other: object) -> Client:
    return Scene(workload(*sessions, **other), costs).run()


class TestIdealClient:
    def test_sends_the_next_turn_at_the_last_token(self) -> None:
        client = ask(session(turn("a", output=2), turn("b", output=3)))
        assert client.sent.tolist() == [0.0, 0.75]
        assert client.first.tolist() == [0.5, 1.25]
        assert client.last.tolist() == [0.75, 1.75]

    def test_records_the_gaps_between_tokens(self) -> None:
        client = ask(session(turn("a", output=3), turn("b", output=1)))
        assert np.concatenate(client.gaps).tolist() == [0.25, 0.25]

    def test_thinks_between_response_and_next_request(self) -> None:
        client = ask(session(turn("a", output=1), turn("b", output=1, think=2.0)))
        assert client.wanted.tolist() == client.sent.tolist() == [0.0, 2.5]

    def test_starts_sessions_at_their_times(self) -> None:
        late, early = session(turn("a"), start=3.0), session(turn("b"), start=1.0)
        assert ask(late, early).sent.tolist() == [3.0, 1.0]

    def test_without_a_limit_sends_all_at_once(self) -> None:
        client = ask(*(session(turn(f"{n}")) for n in range(5)))
        assert client.sent.tolist() == [0.0] * 5

    def test_numbers_requests_session_by_session(self) -> None:
        scene = Scene(workload(session(turn("a"), turn("b")), session(turn("c"))))
        scene.run()
        assert [number for number, _ in scene.arrivals] == [0, 2, 1]

    def test_spends_no_time(self) -> None:
        client = ask(*(session(turn(f"{n}"), turn(f"{n}+")) for n in range(9)), concurrency=2)
        assert client.busy_seconds == 0.0

    def test_starts_its_run_on_request(self) -> None:
        scene = Scene(workload(session(turn("a"), start=1.0)))
        scene.timeline.at(10.0, scene.client.start)
        scene.timeline.run(lambda: scene.client.over)
        assert (scene.client.wanted[0], scene.client.sent[0]) == (11.0, 11.0)


class TestConcurrency:
    def test_sessions_wait_for_a_slot_in_order(self) -> None:
        # Each takes 0.75 s. Sessions without a start time are due when a slot is free.
        client = ask(*(session(turn(f"{n}")) for n in range(5)), concurrency=2)
        assert client.sent.tolist() == [0.0, 0.0, 0.75, 0.75, 1.5]
        assert client.wanted.tolist() == client.sent.tolist()

    def test_later_sessions_wait_behind_earlier_ones(self) -> None:
        starts = [0.0, 0.5, 0.25]
        client = ask(*(session(turn(f"{s}"), start=s) for s in starts), concurrency=1)
        assert client.wanted.tolist() == starts
        assert client.sent.tolist() == [0.0, 1.5, 0.75]

    def test_a_session_keeps_its_slot_while_it_thinks(self) -> None:
        slow = session(turn("a", output=1), turn("b", output=1, think=4.0))
        client = ask(slow, session(turn("c", output=1)), concurrency=1)
        assert client.sent.tolist() == [0.0, 4.5, 5.0]

    def test_a_free_slot_is_kept_for_the_next_session(self) -> None:
        client = ask(session(turn("a")), session(turn("b"), start=9.0), concurrency=1)
        assert client.sent.tolist() == [0.0, 9.0]


class TestRate:
    def test_draws_a_pause_after_each_start(self) -> None:
        rng, due = Random(7), [0.0]
        while len(due) < 50:
            due.append(due[-1] + rng.expovariate(4.0))
        asked = workload(*(session(turn(f"{n}")) for n in range(50)), requests_per_second=4.0)
        client = Scene(asked, rng=Random(7)).run()
        assert client.wanted.tolist() == client.sent.tolist() == pytest.approx(due)

    def test_does_not_wait_for_responses_or_slots(self) -> None:
        sessions = [session(turn(f"{n}", output=100)) for n in range(3)]
        asked = workload(*sessions, requests_per_second=1e6, concurrency=1)
        client = Scene(asked).run()
        assert client.wanted.max() < 1.0
        # The wait for a slot is the client's own: it is between the two.
        assert (client.sent - client.wanted).tolist() == pytest.approx([0.0, 25.25, 50.5], abs=1e-4)

    def test_ignores_the_sessions_start_times(self) -> None:
        sessions = [session(turn(f"{n}"), start=100.0) for n in range(3)]
        client = ask(*sessions, requests_per_second=1e6)
        assert client.sent.max() < 1.0


class TestCosts:
    """In these examples a request costs a second, and reading a token an eighth."""

    REQUEST = ClientCosts(per_request=1.0)
    HALVES = ClientCosts(per_request=1.0, turns_per_request=2)
    CHUNK = ClientCosts(per_chunk=0.125)

    def test_a_request_is_sent_after_its_work(self) -> None:
        scene = Scene(workload(session(turn("a", output=1))), self.REQUEST)
        client = scene.run()
        assert scene.arrivals == [(0, 1.0)]
        assert (client.sent[0], client.first[0]) == (0.0, 1.5)

    def test_simultaneous_requests_are_sent_one_by_one(self) -> None:
        scene = Scene(workload(*(session(turn(n, output=1)) for n in "ab")), self.REQUEST)
        client = scene.run()
        assert scene.arrivals == [(0, 1.0), (1, 2.0)]
        assert client.wanted.tolist() == [0.0, 0.0]
        assert client.sent.tolist() == [0.0, 1.0]

    def test_the_second_turn_of_a_request_waits_for_first_turns_of_others(self) -> None:
        # Turns of the loop: half of a and b (0 to 1), then the other halves of a and b.
        scene = Scene(workload(*(session(turn(n, output=1)) for n in "ab")), self.HALVES)
        client = scene.run()
        assert client.sent.tolist() == [0.0, 0.5]
        assert scene.arrivals == [(0, 1.5), (1, 2.0)]

    def test_a_token_counts_from_its_reading(self) -> None:
        client = ask(session(turn("a", output=2)), costs=self.CHUNK)
        assert (client.first[0], client.last[0]) == (0.625, 0.875)

    def test_simultaneous_tokens_are_read_one_by_one(self) -> None:
        scene = Scene(workload(*(session(turn(n, output=1)) for n in "abc")), self.CHUNK)
        client = scene.client
        client.start()
        together = StepTokens([2, 0, 1], {2: 0, 0: 0, 1: 0}, [])
        scene.timeline.at(0.25, partial(client.receive, together))
        scene.timeline.run(lambda: scene.timeline.now > 0.25)
        assert client.first.tolist() == [0.5, 0.625, 0.375]

    def test_a_token_that_arrives_during_work_is_read_after_it(self) -> None:
        # The token for a arrives at 1.5, while the client prepares request b from 1 to 2.
        client = ask(session(turn("a", output=1)), session(turn("b", output=1)), costs=self.REQUEST)
        assert client.first.tolist() == [2.0, 2.5]

    def test_the_next_request_waits_until_the_last_token_is_read(self) -> None:
        costs = ClientCosts(per_chunk=0.125, per_request=1.0)
        client = ask(session(turn("a", output=1), turn("b", output=1)), costs=costs)
        # 1 to send, 0.5 for the server, 0.125 to read, and again.
        assert client.last.tolist() == [1.625, 3.25]
        assert client.wanted.tolist() == client.sent.tolist() == [0.0, 1.625]

    def test_a_timer_that_ends_during_work_is_late(self) -> None:
        client = ask(session(turn("a")), session(turn("b"), start=0.25), costs=self.REQUEST)
        assert (client.wanted[1], client.sent[1]) == (0.25, 1.0)

    def test_a_user_who_stops_thinking_during_work_sends_late(self) -> None:
        thinker = session(turn("a", output=1), turn("b", output=1, think=0.25))
        # a ends at 1.5, so b is due at 1.75; from 1.5 on the client prepares c's request.
        client = ask(thinker, session(turn("c", output=1), start=1.5), costs=self.REQUEST)
        assert (client.wanted[1], client.sent[2], client.sent[1]) == (1.75, 1.5, 2.5)

    def test_a_pause_before_the_next_session_ends_with_the_current_work(self) -> None:
        # Pauses have no length, but only one session starts in a turn of the loop.
        sessions = [session(turn(f"{n}", output=1)) for n in range(4)]
        client = ask(*sessions, costs=self.REQUEST, requests_per_second=1e9)
        assert client.sent.tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0])
        assert client.wanted.tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0])

    def test_sessions_start_between_the_turns_of_a_request(self) -> None:
        # 0 to 0.5: a. 0.5 to 1: a, and b starts. 1 to 1.5: b. 1.5 to 2: b, and c starts.
        scene = Scene(
            workload(*(session(turn(n, output=1)) for n in "abc"), requests_per_second=1e9),
            self.HALVES,
        )
        # Tokens that arrive are read in between, and cost nothing here.
        client = scene.run()
        assert client.sent.tolist() == pytest.approx([0.0, 1.0, 2.0])
        assert dict(scene.arrivals) == pytest.approx({0: 1.0, 1: 2.0, 2: 3.0})

    def test_a_pause_starts_after_the_work_before_it(self) -> None:
        # In one turn of the loop a's other half (0.5 to 1) comes first, then b starts.
        asked = workload(*(session(turn(n, output=1)) for n in "abc"), requests_per_second=1.0)
        client = Scene(asked, self.HALVES, rng=Pauses(0.25, 4.0, 0.0)).run()
        assert client.wanted.tolist() == client.sent.tolist() == [0.0, 1.0, 5.0]

    def test_tokens_are_read_between_the_turns_of_a_request(self) -> None:
        quarters = ClientCosts(per_request=1.0, turns_per_request=4)
        # a's token arrives at 1.5: in the first quarter of b, when the second is already ready.
        asked = session(turn("a", output=1)), session(turn("b", output=1), start=1.375)
        assert ask(*asked, costs=quarters).first[0] == 1.875

    def test_the_published_client_sends_four_turns_late(self) -> None:
        costs = SINGLE_THREADED
        scene = Scene(workload(*(session(turn(n, output=1)) for n in "abc")), costs)
        scene.run()
        step = costs.per_request / costs.turns_per_request
        # In each of the turns all three take a step.
        last = 3 * step * (costs.turns_per_request - 1)
        expected = {n: last + (n + 1) * step for n in range(3)}
        assert dict(scene.arrivals) == pytest.approx(expected)


class TestFailedRequest:
    def test_ends_its_session(self) -> None:
        scene = Scene(workload(session(turn("a"), turn("b"), turn("c"))), refused=[1])
        client = scene.run()
        assert [number for number, _ in scene.arrivals] == [0, 1]
        assert client.done == 1
        assert np.isnan(client.first).tolist() == [False, True, True]
        assert np.isnan(client.last).tolist() == [False, True, True]
        assert np.isnan(client.sent).tolist() == [False, False, True]

    def test_frees_its_slot(self) -> None:
        sessions = [session(turn("a"), turn("b")), session(turn("c"))]
        scene = Scene(workload(*sessions, concurrency=1), refused=[0])
        client = scene.run()
        assert [number for number, _ in scene.arrivals] == [0, 2]
        assert client.last[2] == 0.75

    def test_run_ends_if_all_fail(self) -> None:
        asked = workload(*(session(turn(f"{n}"), turn(f"{n}+")) for n in range(9)), concurrency=2)
        scene = Scene(asked, refused=range(18))
        client = scene.run()
        assert [number for number, _ in scene.arrivals] == [0, 2, 4, 6, 8, 10, 12, 14, 16]
        assert np.isnan(client.last).all()

    def test_costs_the_client_as_much_as_others(self) -> None:
        scene = Scene(workload(session(turn("a"))), ClientCosts(per_request=1.0), refused=[0])
        assert scene.run().busy_seconds == 1.0


times = st.sampled_from([0.0, 0.0, 0.1, 0.5, 3.0])
sessions_ = st.lists(
    st.builds(
        lambda turns, start: session(
            *(turn("x", output=output, think=think) for output, think in turns), start=start
        ),
        st.lists(st.tuples(st.integers(1, 4), times), min_size=1, max_size=4),
        times,
    ),
    min_size=1,
    max_size=6,
)
costs_ = st.builds(
    ClientCosts,
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(1, 4),
)


@settings(deadline=None)
@given(
    sessions_,
    costs_,
    st.none() | st.integers(1, 3),
    st.none() | st.floats(0.5, 100.0),
    st.sets(st.integers(0, 23)),
)
def test_invariants_of_any_workload(
    sessions: list[Session],
    costs: ClientCosts,
    concurrency: int | None,
    pace: float | None,
    refused: set[int],
) -> None:
    asked = workload(*sessions, concurrency=concurrency, requests_per_second=pace)
    scene = Scene(asked, costs, refused)
    client = scene.run()
    numbers = [number for number, _ in scene.arrivals]
    arrived = np.full(asked.requests, np.nan)
    for number, time in scene.arrivals:
        arrived[number] = time

    # Each request is sent at most once. Each session is sent up to its first failure.
    assert len(set(numbers)) == len(numbers)
    first = 0
    answered = 0
    for one in sessions:
        places = range(first, first + len(one.turns))
        failed = next((place for place in places if place in refused), None)
        expected = [place for place in places if failed is None or place <= failed]
        assert [number for number in numbers if number in places] == expected
        good = [place for place in expected if place not in refused]
        assert np.flatnonzero(~np.isnan(client.last[places.start : places.stop])).tolist() == [
            place - first for place in good
        ]
        answered += len(good)
        first = places.stop

    # Times are in order, and the server never has more requests than there are slots.
    done = ~np.isnan(client.last)
    assert np.count_nonzero(done) == answered
    slack = 1e-9
    assert (client.wanted <= client.sent + slack)[~np.isnan(client.sent)].all()
    assert (client.sent <= arrived + slack)[~np.isnan(arrived)].all()
    assert (arrived + DELAY <= client.first + slack)[done].all()
    assert (client.first <= client.last)[done].all()
    assert scene.most_under_way <= (concurrency or len(sessions))

    # Every token is read once, and work takes its time.
    outputs = np.array([one.output.tokens for each in sessions for one in each.turns])
    tokens = int(outputs[done].sum())
    assert sum(len(gaps) for gaps in client.gaps) == tokens - answered
    work = len(numbers) * costs.per_request + tokens * costs.per_chunk
    assert client.busy_seconds == pytest.approx(work)
    assert client.busy_seconds <= scene.timeline.now + slack
