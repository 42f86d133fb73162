from __future__ import annotations

from typing import Any

import pytest

from extproc.core.fleet.backlog import STEP_TOKENS
from extproc.core.fleet.cache_sizes import DEFAULT_TOKENS
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.engine_counters import LEAST_READINGS
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.report import Load, PrefillTotals, Report, StepTotals, sound_load
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.weights import WEIGHTS
from extproc.core.request.blocks import BLOCK_BYTES
from tests.core.clock import Clock, report

A = "10.0.0.1:8000"
B = "10.0.0.2:8000"


def hold(ledger: Ledger, requests: int) -> None:
    """Put this number of own requests in flight on A."""
    while ledger.loads.get(A, 0) < requests:
        ledger.acquire("llama", Endpoint(A, A))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def signals(clock: Clock, ledger: Ledger) -> Signals:
    followed = Signals(clock, ledger)
    followed.set_endpoints([A, B])
    return followed


def test_there_is_no_reading_before_the_first_scrape(signals: Signals) -> None:
    assert signals.latest(A) is None
    assert signals.fresh([A, B], 3) == [None, None]


def test_scrape_is_kept_with_its_time_and_in_flight_requests(
    signals: Signals, clock: Clock
) -> None:
    said = report(waiting=3, running=8, kv_usage=0.5)
    signals.record_scrape(A, said, inflight=9)
    reading = signals.latest(A)
    assert reading is not None
    assert (reading.load, reading.running, reading.ours) == (said.load, 8, 9)
    assert (reading.at, reading.reported_at) == (clock.now, clock.now)


def test_reading_is_fresh_up_to_the_given_age(signals: Signals, clock: Clock) -> None:
    signals.record_scrape(A, report(), inflight=0)
    clock.advance(3)
    assert signals.fresh([A, B], 3) == [signals.latest(A), None]
    clock.advance(0.01)
    assert signals.fresh([A], 3) == [None]
    assert signals.latest(A) is not None


def test_reading_contains_at_most_the_reported_requests(signals: Signals) -> None:
    signals.record_scrape(A, report(waiting=1, running=2), inflight=9)
    reading = signals.latest(A)
    assert reading is not None
    assert reading.ours == 3


class TestLoadReport:
    def test_updates_the_load_only(self, signals: Signals, clock: Clock, ledger: Ledger) -> None:
        signals.record_scrape(A, report(waiting=3, running=8, kv_usage=0.5), inflight=9)
        clock.advance(1)
        hold(ledger, 5)
        signals.record_load_report(A, Load(0, 0.2))
        reading = signals.latest(A)
        assert reading is not None
        assert (reading.load, reading.running) == (Load(0, 0.2), 8)
        assert (reading.at, reading.reported_at) == (clock.now, clock.now - 1)

    def test_does_not_include_its_own_request(self, signals: Signals, ledger: Ledger) -> None:
        hold(ledger, 5)
        signals.record_load_report(A, Load(9, 0))
        reading = signals.latest(A)
        assert reading is not None
        assert reading.ours == 4

    def test_includes_requests_sent_after_the_last_scrape(
        self, signals: Signals, clock: Clock, ledger: Ledger
    ) -> None:
        signals.record_scrape(A, report(), inflight=0)
        clock.advance(1)
        hold(ledger, 6)
        signals.record_load_report(A, Load(0, 0.1))
        reading = signals.latest(A)
        assert reading is not None
        assert (reading.ours, reading.running) == (5, 5)

    def test_without_a_scrape_counts_requests_that_do_not_wait_as_running(
        self, signals: Signals, ledger: Ledger
    ) -> None:
        hold(ledger, 6)
        signals.record_load_report(A, Load(2, 0.1))
        reading = signals.latest(A)
        assert reading is not None
        assert (reading.running, reading.report) == (3, None)


class TestSetEndpoints:
    def test_forgets_readings_of_removed_endpoints(self, signals: Signals) -> None:
        signals.record_scrape(A, report(), inflight=0)
        signals.record_scrape(B, report(), inflight=0)
        signals.set_endpoints([B])
        assert signals.latest(A) is None
        assert signals.latest(B) is not None

    def test_ignores_a_scrape_of_an_endpoint_that_left_meanwhile(self, signals: Signals) -> None:
        signals.set_endpoints([B])
        signals.record_scrape(A, report(adapters=frozenset({"sql"})), inflight=0)
        signals.record_load_report(A, Load(0, 0))
        assert signals.latest(A) is None
        assert not signals.residency.has(A, "sql")

    def test_starts_the_age_of_new_endpoints(self, signals: Signals, clock: Clock) -> None:
        clock.advance(5)
        signals.set_endpoints([B, "10.0.0.3:8000"])
        clock.advance(1)
        assert signals.starting([A, B, "10.0.0.3:8000"], 7) == {B: 6 / 7, "10.0.0.3:8000": 1 / 7}
        assert signals.starting([B, "10.0.0.3:8000"], 5) == {"10.0.0.3:8000": 1 / 5}
        assert signals.starting([B, "10.0.0.3:8000"], 1) == {}

    def test_treats_returning_endpoints_as_new(self, signals: Signals, clock: Clock) -> None:
        signals.residency.used(A, "sql")
        signals.set_endpoints([B])
        clock.advance(5)
        signals.set_endpoints([A, B])
        assert signals.starting([A, B], 1) == {A: 0}
        assert not signals.residency.has(A, "sql")


class TestSoundLoad:
    @pytest.mark.parametrize(
        ("waiting", "kv_usage"), [(0, 0), (3, 0.25), (1_000_000, 1), (0.5, 1e-300)]
    )
    def test_accepts_plausible_numbers(self, waiting: float, kv_usage: float) -> None:
        assert sound_load(waiting, kv_usage) == Load(waiting, kv_usage)

    @pytest.mark.parametrize("kv_usage", [1.0001, 1.05])
    def test_rounds_slightly_over_full_caches_down(self, kv_usage: float) -> None:
        assert sound_load(3, kv_usage) == Load(3, 1)

    @pytest.mark.parametrize(
        ("waiting", "kv_usage"),
        [
            pytest.param(3, 100, id="percent"),
            pytest.param(3, 1.06, id="more than a full cache"),
            pytest.param(3, 1e308, id="a huge usage"),
            pytest.param(1_000_001, 0.5, id="more waiting than any server holds"),
            pytest.param(1e308, 0.5, id="a huge queue"),
            pytest.param(-1, 0.5, id="less than no queue"),
            pytest.param(3, -0.1, id="less than nothing"),
            *(
                pytest.param(waiting, kv_usage, id=f"{waiting} and {kv_usage}")
                for odd in (float("nan"), float("inf"), float("-inf"))
                for waiting, kv_usage in ((odd, 0.5), (3.0, odd))
            ),
        ],
    )
    def test_rejects_implausible_numbers(self, waiting: float, kv_usage: float) -> None:
        assert sound_load(waiting, kv_usage) is None


class TestRestartedEngine:
    """An engine whose counters restart at zero."""

    BLOCKS = (1, 2, 3)

    @pytest.fixture(autouse=True)
    def known(self, signals: Signals) -> None:
        """An endpoint with a reading, cached blocks, adapters and a backlog."""
        self.say(signals, 1000)
        signals.prefixes.sent(A, self.BLOCKS)
        signals.prefixes.sent(B, self.BLOCKS)
        signals.residency.used(A, "sql")
        signals.backlog.add(A, 500)

    def say(self, signals: Signals, tokens: float | None, cached: float | None = None) -> None:
        said = report()._replace(prompt_tokens=tokens, cached_tokens=cached)
        signals.record_scrape(A, said, inflight=0)

    def cached(self, signals: Signals) -> set[str]:
        return set(signals.prefixes.matches(self.BLOCKS))

    @pytest.mark.parametrize("tokens", [0, 999])
    def test_has_no_cached_blocks_adapters_and_backlog(
        self, signals: Signals, tokens: float
    ) -> None:
        self.say(signals, tokens)
        assert self.cached(signals) == {B}
        assert not signals.residency.has(A, "sql")
        assert not signals.backlog.tokens.get(A)

    def test_has_a_new_reading(self, signals: Signals) -> None:
        self.say(signals, 10, cached=5)
        reading = signals.latest(A)
        assert reading is not None
        assert reading.report is not None
        assert (reading.report.prompt_tokens, reading.report.cached_tokens) == (10, 5)
        signals.prefixes.sent(A, self.BLOCKS)
        self.say(signals, 20)
        assert self.cached(signals) == {A, B}

    def test_has_its_reported_cache_size(self, signals: Signals) -> None:
        said = report()._replace(prompt_tokens=0, block_size=16, blocks=8)
        signals.record_scrape(A, said, inflight=0)
        signals.prefixes.sent(A, self.BLOCKS)
        assert signals.prefixes.size(A) == 2, "128 tokens are two blocks"

    @pytest.mark.parametrize("tokens", [1000, 1001])
    def test_is_not_assumed_if_counters_grow(self, signals: Signals, tokens: float) -> None:
        self.say(signals, tokens)
        assert self.cached(signals) == {A, B}

    def test_is_not_assumed_without_counters(self, signals: Signals) -> None:
        self.say(signals, None)
        self.say(signals, 1)
        assert self.cached(signals) == {A, B}

    def test_is_noticed_after_a_load_report(self, signals: Signals) -> None:
        signals.record_load_report(A, Load(0, 0))
        self.say(signals, 1)
        assert self.cached(signals) == {B}

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (report()._replace(first_tokens=9), report()._replace(first_tokens=1)),
            (report()._replace(finished=9), report()._replace(finished=1)),
            (report()._replace(preemptions=9), report()._replace(preemptions=1)),
        ],
    )
    def test_is_noticed_by_any_counter_that_an_old_vllm_has(
        self, signals: Signals, before: Report, after: Report
    ) -> None:
        for one in (before, after):
            assert self.cached(signals) == {A, B}
            signals.record_scrape(A, one, inflight=0)
        assert self.cached(signals) == {B}

    def test_is_not_assumed_if_only_cached_tokens_went_down(self, signals: Signals) -> None:
        self.say(signals, 1000, cached=900)
        self.say(signals, 1000, cached=100)
        assert self.cached(signals) == {A, B}


class TestBacklog:
    """Three own requests; the engine counts the first tokens."""

    @pytest.fixture
    def ledger(self) -> Ledger:
        ledger = Ledger()
        hold(ledger, 3)
        return ledger

    @pytest.fixture
    def asked(self, signals: Signals) -> Signals:
        signals.record_scrape(A, _begun(0, 0, 100, 100), 0)
        for tokens in (1000, 2000, 4000):
            signals.backlog.add(A, tokens)
        return signals

    def test_is_the_latest_prompts_without_a_first_token(self, asked: Signals) -> None:
        asked.record_scrape(A, _begun(1, 2, first_tokens=101, finished=100), 3)
        assert asked.backlog.tokens[A] == 6000

    def test_is_empty_after_all_first_tokens(self, asked: Signals) -> None:
        asked.record_scrape(A, _begun(0, 3, first_tokens=103, finished=100), 3)
        assert A not in asked.backlog.tokens

    def test_includes_prompts_sent_during_the_scrape(self, asked: Signals, ledger: Ledger) -> None:
        asked.backlog.add(A, 8000)
        hold(ledger, 4)
        asked.record_scrape(A, _begun(0, 3, first_tokens=103, finished=100), 3)
        assert asked.backlog.tokens[A] == 8000

    def test_includes_prompts_sent_while_as_many_requests_ended(self, asked: Signals) -> None:
        asked.backlog.add(A, 8000)
        said = _begun(0, 3, first_tokens=103, finished=100)
        asked.record_scrape(A, said, inflight=3, sent=1)
        assert asked.backlog.tokens[A] == 8000

    def test_keeps_prompts_that_came_after_the_step_whose_end_the_metrics_show(
        self, asked: Signals
    ) -> None:
        asked.record_scrape(A, _begun(0, 0, first_tokens=100, finished=100), 3)
        assert asked.backlog.tokens[A] == 7000
        asked.record_scrape(A, _begun(0, 1, first_tokens=101, finished=100), 3)
        assert asked.backlog.tokens[A] == 6000

    def test_forgets_them_after_the_longest_step_because_clients_may_read_slowly(
        self, clock: Clock, asked: Signals
    ) -> None:
        clock.advance(11)
        asked.record_scrape(A, _begun(0, 0, first_tokens=103, finished=103), 3)
        assert A not in asked.backlog.tokens

    def test_keeps_them_also_if_the_metrics_show_requests_of_others(
        self, asked: Signals, ledger: Ledger
    ) -> None:
        for _ in range(50):  # half of the requests are others'
            asked.record_scrape(A, _begun(0, 6, first_tokens=100, finished=94), 3)
        asked.backlog.add(A, 8000)
        hold(ledger, 4)
        asked.record_scrape(A, _begun(0, 6, first_tokens=106, finished=100), 4)
        assert asked.backlog.tokens[A] == 8000

    def test_keeps_prompts_that_came_after_the_last_step_began_among_requests_of_others(
        self, clock: Clock, asked: Signals, ledger: Ledger
    ) -> None:
        said = _begun(0, 9, first_tokens=109, finished=100)  # most requests are others'
        for steps in range(0, 20, 2):
            clock.advance(0.2)
            asked.record_scrape(A, said._replace(steps=StepTotals(steps, 0, 0, 0)), 3)
        for tokens in (500, 8000):
            asked.backlog.add(A, tokens)
            clock.advance(0.1)
        hold(ledger, 5)
        # A step takes a tenth of a second. The last one began 0.15 seconds ago.
        asked.record_scrape(A, said._replace(steps=StepTotals(20, 0, 0, 0)), 5)
        assert asked.backlog.tokens[A] == 8000
        reading = asked.latest(A)
        assert reading is not None
        assert reading.unseen == 1

    def test_forgets_prompts_that_are_not_in_the_metrics_only_if_others_requests_are(
        self, clock: Clock, asked: Signals
    ) -> None:
        for steps in range(4):
            clock.advance(0.2)
            said = _begun(0, 1, first_tokens=101 + steps, finished=100 + steps)
            asked.record_scrape(A, said._replace(steps=StepTotals(9 * steps, 0, 0, 0)), 3)
        assert asked.backlog.tokens[A] == 6000  # two of three are not in the metrics

    def test_includes_prompts_sent_during_the_scrape_once(
        self, clock: Clock, asked: Signals, ledger: Ledger
    ) -> None:
        said = _begun(0, 9, first_tokens=109, finished=100)
        for steps in range(0, 20, 2):
            clock.advance(0.2)
            asked.record_scrape(A, said._replace(steps=StepTotals(steps, 0, 0, 0)), 3)
        asked.backlog.add(A, 500)
        clock.advance(0.2)
        asked.backlog.add(A, 8000)
        hold(ledger, 4)
        said = said._replace(steps=StepTotals(20, 0, 0, 0))
        asked.record_scrape(A, said, inflight=3, sent=1)
        assert asked.backlog.tokens[A] == 8000

    def test_ignores_requests_that_ended_without_a_first_token(
        self, clock: Clock, asked: Signals
    ) -> None:
        # Two aborted requests, which ended without a first token.
        for _ in range(3):
            clock.advance(31)
            asked.record_scrape(A, _begun(0, 3, first_tokens=106, finished=105), 3)
        assert A not in asked.backlog.tokens

    def test_of_an_endpoint_that_returns_does_not_include_requests_that_were_aborted_before(
        self, asked: Signals
    ) -> None:
        asked.record_scrape(A, _begun(0, 3, first_tokens=103, finished=100), 3)
        asked.set_endpoints([B])
        asked.set_endpoints([A, B])
        asked.record_scrape(A, _begun(0, 0, first_tokens=103, finished=105), 0)
        assert asked.totals.of(A).backlog == 0

    def test_stays_without_counters(self, asked: Signals) -> None:
        asked.record_scrape(A, report(running=3), 3)
        assert asked.backlog.tokens[A] == 7000


class TestTokenSizes:
    """Ten prompts of 4,000 bytes, each of which the engine counts as 2,000 tokens."""

    def exchange(
        self, fleet: Fleet, clock: Clock, *, others: int = 0, ours: bool = True, **changes: Any
    ) -> None:
        """Send and count them, with so many prompts of others for each, of 9,000 tokens."""
        for prompts in range(11):
            self.scrape(fleet, clock, prompts, others)
            tokens = 4000 / fleet.signals.token_sizes.of("llama")
            request = SentRequest(chains=[[1]], tokens=tokens, turn=prompts)._replace(**changes)
            if ours:
                lease = fleet.send("llama", Endpoint(A, A), request)
            else:
                lease = fleet.receive("llama", Endpoint(A, A), request, clock())
            clock.advance(0.1)
            lease.release()

    def scrape(
        self, fleet: Fleet, clock: Clock, prompts: int, others: int = 0, after: float = 0.1
    ) -> None:
        clock.advance(after)
        counted = prompts * (1 + others)
        counters = report(0, 0)._replace(
            block_size=16,
            blocks=400,
            first_tokens=counted,
            finished=counted,
            responded_tokens=prompts * (2000.0 + 9000.0 * others),
            steps=StepTotals(prompts, 0, 0, 0),
        )
        fleet.signals.record_scrape(A, counters, inflight=0)

    @pytest.fixture
    def fleet(self, signals: Signals, ledger: Ledger) -> Fleet:
        return Fleet(ledger=ledger, signals=signals)

    def test_are_learned_from_what_engines_count(self, fleet: Fleet, clock: Clock) -> None:
        self.exchange(fleet, clock)
        assert fleet.signals.token_sizes.of("llama") == pytest.approx(2.0)

    def test_limit_the_blocks_that_fit_into_a_cache(self, fleet: Fleet, clock: Clock) -> None:
        self.exchange(fleet, clock)
        self.scrape(fleet, clock, prompts=11)
        fleet.signals.prefixes.sent(A, range(1000))
        expected = 6400 * fleet.signals.token_sizes.of("llama") / BLOCK_BYTES
        assert fleet.signals.prefixes.size(A) == pytest.approx(expected, rel=0.06)
        assert fleet.signals.prefixes.room(A) == pytest.approx(6400, rel=0.03)

    def test_are_not_learned_from_prompts_of_others(self, fleet: Fleet, clock: Clock) -> None:
        self.exchange(fleet, clock, others=1)
        assert not fleet.signals.token_sizes.learned

    def test_are_not_learned_from_requests_of_peers(self, fleet: Fleet, clock: Clock) -> None:
        """Their tokens are counted with the peer's bytes per token."""
        self.exchange(fleet, clock, ours=False)
        assert not fleet.signals.token_sizes.learned

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"turn": None}, id="a prompt that was not read whole"),
            pytest.param({"tokens": None, "turn": None}, id="a strategy that reads no prompts"),
        ],
    )
    def test_are_not_learned_from_requests_of_unknown_size(
        self, fleet: Fleet, clock: Clock, changes: dict[str, Any]
    ) -> None:
        self.exchange(fleet, clock, **changes)
        assert not fleet.signals.token_sizes.learned

    def test_are_not_learned_while_the_metrics_may_not_show_a_prompt_yet(
        self, fleet: Fleet, clock: Clock
    ) -> None:
        """Each prompt is sent when the engine has counted one of others, but was not read yet."""
        for prompts in range(0, 20, 2):
            self.scrape(fleet, clock, prompts)
            request = SentRequest(chains=[[1]], tokens=1000.0, turn=1)
            lease = fleet.send("llama", Endpoint(A, A), request)
            self.scrape(fleet, clock, prompts + 1, after=0.001)
            lease.release()
        assert not fleet.signals.token_sizes.learned


class TestBlockedQueue:
    """A request waits, and the engine has preempted requests since the reading before."""

    def scrape(self, signals: Signals, clock: Clock, *preemptions: float) -> float:
        """Return the backlog after scrapes with these numbers of preemptions so far."""
        for number in preemptions:
            clock.advance(1)
            signals.record_scrape(A, report(1, 4)._replace(preemptions=number), inflight=5)
        return signals.totals.of(A).backlog

    def test_counts_as_a_full_cache(self, signals: Signals, clock: Clock) -> None:
        assert self.scrape(signals, clock, 0, 0) == 0
        assert self.scrape(signals, clock, 1) == WEIGHTS.full * DEFAULT_TOKENS

    def test_is_forgotten_if_the_endpoint_leaves(self, signals: Signals, clock: Clock) -> None:
        self.scrape(signals, clock, 0)
        signals.set_endpoints([B])
        signals.set_endpoints([A, B])
        assert self.scrape(signals, clock, 1) == 0


class TestFullBatch:
    """Two requests wait although the KV cache has room, and the batch does not grow.

    The engine computes 5,000 tokens in a second, in which ten requests end.
    """

    def scrape(self, signals: Signals, clock: Clock, times: int) -> float:
        """Return the backlog after this number of scrapes."""
        for number in range(times):
            clock.advance(1)
            prompts = 10 * number
            said = report(waiting=2, running=64)._replace(
                finished=prompts,
                steps=StepTotals(number, 0, prompts * 0.02, prompts),
                prefills=PrefillTotals(prompts, prompts * 0.2, prompts * 1000),
            )
            signals.record_scrape(A, said, inflight=66)
        return signals.totals.of(A).backlog

    def test_counts_half_of_the_tokens_until_there_is_a_place(
        self, signals: Signals, clock: Clock
    ) -> None:
        assert self.scrape(signals, clock, 4) == 0
        assert self.scrape(signals, clock, 30) == pytest.approx(5000 * 0.3 / 2, rel=0.1)

    def test_is_forgotten_if_the_endpoint_leaves(self, signals: Signals, clock: Clock) -> None:
        assert self.scrape(signals, clock, 30)
        signals.set_endpoints([B])
        signals.set_endpoints([A, B])
        assert self.scrape(signals, clock, 4) == 0


def _begun(waiting: float, running: float, first_tokens: float, finished: float) -> Report:
    said = report(waiting, running)
    return said._replace(first_tokens=first_tokens, finished=finished)


class TestRequestsOfOthers:
    """The requests of other sidecars; test_pressure.py has the rest."""

    def test_are_the_reported_ones_without_own_requests(self, signals: Signals) -> None:
        signals.record_scrape(A, report(waiting=0, running=7), inflight=3)
        assert signals.totals.of(A).requests == 4

    def test_are_counted_without_own_ones_that_the_metrics_do_not_show_yet(
        self, clock: Clock, signals: Signals, ledger: Ledger
    ) -> None:
        said = report(waiting=0, running=7)
        for steps in range(0, 20, 2):
            clock.advance(0.2)
            signals.record_scrape(A, said._replace(steps=StepTotals(steps, 0, 0, 0)), 0)
        for _ in range(3):
            signals.backlog.add(A, 1000)
        hold(ledger, 3)
        signals.record_scrape(A, said._replace(steps=StepTotals(20, 0, 0, 0)), inflight=3)
        assert signals.totals.of(A).other_requests == pytest.approx(7)

    def test_end_also_if_engines_do_not_count_steps(
        self, clock: Clock, signals: Signals, ledger: Ledger
    ) -> None:
        hold(ledger, 10)
        for running, scrapes in ((20, 100), (10, 600)):
            for _ in range(scrapes):
                clock.advance(0.2)
                signals.record_scrape(A, report(waiting=0, running=running), inflight=10)
        assert signals.totals.of(A).other_requests == 0
        assert signals.pressure.share_of_others == 0

    def test_exclude_requests_sent_during_the_scrape(
        self, signals: Signals, ledger: Ledger
    ) -> None:
        hold(ledger, 4)
        signals.record_scrape(A, report(running=4), inflight=3)
        assert signals.totals.of(A).requests == 4

    def test_exclude_requests_that_began_and_ended_during_the_scrape(
        self, signals: Signals, ledger: Ledger
    ) -> None:
        before = signals.sent(A)
        ledger.acquire("llama", Endpoint(A, A)).release()
        sent = signals.sent(A) - before
        signals.record_scrape(A, report(running=1), inflight=0, sent=sent)
        assert signals.totals.of(A).requests == 0
        assert signals.pressure.share_of_others == 0

    def test_count_with_the_mean_prompt_length(self, signals: Signals, ledger: Ledger) -> None:
        signals.record_scrape(A, _begun(0, 0, first_tokens=100, finished=100), inflight=0)
        hold(ledger, 1)
        signals.backlog.add(A, 500)
        signals.record_scrape(A, _begun(0, 4, first_tokens=101, finished=100), inflight=1)
        assert signals.totals.of(A).backlog == STEP_TOKENS + 500 + 2 * 500

    @pytest.mark.parametrize(
        ("inflight", "computed", "each"),
        [
            pytest.param(0, 40, 40, id="of all engines"),
            pytest.param(4, 40, 500, id="few are others'"),
            pytest.param(0, 90_000, 500, id="old vLLM counts waiting prompts again"),
        ],
    )
    def test_count_with_the_tokens_that_engines_compute_up_to_the_expected_ones(
        self, signals: Signals, ledger: Ledger, inflight: int, computed: int, each: int
    ) -> None:
        signals.backlog.add(A, 500).finish()
        hold(ledger, inflight)
        for prompts in (100, 101):
            scrape = _begun(0, 4, first_tokens=prompts, finished=100)
            counters = scrape._replace(prompt_tokens=computed * prompts, cached_tokens=0)
            signals.record_scrape(B, counters, inflight)
        assert signals.pressure.share_of_others == (0 if inflight else 1)
        signals.record_scrape(A, _begun(3, 0, first_tokens=0, finished=0), inflight=0)
        assert signals.totals.of(A).other_backlog == 3 * each

    def test_are_waiting_requests_without_counters(self, signals: Signals, ledger: Ledger) -> None:
        hold(ledger, 1)
        signals.backlog.add(A, 500)
        signals.record_scrape(A, report(waiting=3, running=2), inflight=1)
        assert signals.totals.of(A).backlog == STEP_TOKENS + 500 + 2 * 500

    def test_are_forgotten_when_the_endpoint_leaves(self, signals: Signals) -> None:
        signals.record_scrape(A, report(running=7), inflight=3)
        signals.set_endpoints([])
        assert signals.totals.of(A).requests == 0


def test_slowness_of_prompts_is_that_of_the_mean_prompt(signals: Signals) -> None:
    for number, (address, step, token) in enumerate([(A, 0.01, 0.001), (B, 0.02, 0.0001)], 1):
        for count in range(LEAST_READINGS + 1):
            steps = StepTotals(0, 0, count * 100 * step, count * 100)
            prefills = PrefillTotals(count, count * (step + 500 * token), count * 500)
            report = Report(Load(0, 0.0), 0, blocks=number, steps=steps, prefills=prefills)
            signals.record_scrape(address, report, inflight=0)
    for tokens, slower in ((0, B), (1e6, A)):
        for _ in range(500):
            signals.backlog.add(A, tokens)
        found = signals.slowness([A, B])
        assert max(found.prompts, key=lambda address: found.prompts[address]) == slower
        assert found.steps[A] < found.steps[B]


class TestFirstReading:
    BLOCKS = (1, 2, 3)

    def test_forgets_prompts_that_an_unused_engine_never_got(self, signals: Signals) -> None:
        signals.prefixes.sent(A, self.BLOCKS)
        signals.turns.sent(A, 7, 0)
        signals.record_scrape(A, report()._replace(prompt_tokens=0), inflight=0)
        assert signals.prefixes.matches(self.BLOCKS) == {}
        assert signals.turns.endpoint_of(7) is None

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param(report(waiting=1), id="waiting"),
            pytest.param(report(running=1), id="running"),
            pytest.param(report()._replace(prompt_tokens=48.0), id="finished"),
        ],
    )
    def test_keeps_prompts_if_the_engine_has_had_requests(
        self, signals: Signals, said: Report
    ) -> None:
        signals.prefixes.sent(A, self.BLOCKS)
        signals.record_scrape(A, said, inflight=1)
        assert signals.prefixes.matches(self.BLOCKS) == {A: 3}

    def test_keeps_prompts_of_requests_that_the_engine_does_not_show_yet(
        self, signals: Signals, ledger: Ledger
    ) -> None:
        """An engine tokenizes a prompt before its metrics show the request."""
        hold(ledger, 1)
        signals.prefixes.sent(A, self.BLOCKS)
        signals.record_scrape(A, report()._replace(prompt_tokens=0), inflight=1)
        assert signals.prefixes.matches(self.BLOCKS) == {A: 3}

    def test_of_a_new_engine_shows_that_its_prompts_are_not_computed(
        self, signals: Signals, ledger: Ledger
    ) -> None:
        hold(ledger, 2)
        for tokens in (1000, 2000):
            signals.backlog.add(A, tokens)
        signals.record_scrape(A, _begun(1, 1, first_tokens=0, finished=0), inflight=2)
        assert signals.backlog.tokens[A] == 3000


@pytest.mark.parametrize(("running", "seconds"), [(0, 0.5), (1, 10.0)])
def test_time_between_scrapes_counts_if_a_prompt_is_computed_in_part(
    signals: Signals, clock: Clock, running: int, seconds: float
) -> None:
    """Then the computed tokens may be those of this prompt."""
    for steps in (0, 100, 200):
        totals = StepTotals(steps, 0, steps * 0.01, steps)
        served = _served(0, 0.0, totals, running=0)
        signals.record_scrape(A, served, inflight=0)
    clock.advance(10)
    totals = StepTotals(200, 5_000, 2.0, 200)
    signals.record_scrape(A, _served(1, 0.5, totals, running=running), inflight=0)
    assert signals.speeds.seconds(A, 1, 5_000) == pytest.approx(seconds, rel=0.01)


def _served(prompts: int, seconds: float, steps: StepTotals, *, running: int) -> Report:
    """Return a report after so many prompts, with requests that have no first token."""
    return Report(
        Load(0, 0.0),
        running,
        prompt_tokens=steps.computed,
        cached_tokens=0.0,
        first_tokens=prompts,
        first_token_seconds=seconds,
        finished=prompts,
        steps=steps,
    )
