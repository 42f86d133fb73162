from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.contexts import Contexts
from extproc.core.fleet.engine_times import Slowness
from extproc.core.fleet.weights import WEIGHTS
from extproc.core.strategies import Query
from extproc.core.strategies.gpu_factors import GpuFactors, gpu_factors
from extproc.core.strategies.prefix_costs import Work
from tests.core.strategies.prefix_cache_replicas import Replicas, costs, prompt, set_slowness


@pytest.fixture
def replicas() -> Replicas:
    return Replicas(3)


@pytest.fixture
def mixed(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> Replicas:
    """Three endpoints, of which the first takes twice as long, and the last half as long."""
    slow, _, fast = replicas.addresses
    found = Slowness({slow: 2.0, fast: 0.5}, {slow: 3.0, fast: 0.5})
    set_slowness(monkeypatch, replicas, found)
    return replicas


def continuing(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this share of sessions have a further turn."""
    monkeypatch.setattr(Contexts, "continued", share)


def factors(replicas: Replicas, evicting: tuple[int, ...] = ()) -> GpuFactors:
    return gpu_factors(replicas.signals, replicas.addresses, WEIGHTS.step, evicting)


class TestFleetOfOneKind:
    def test_has_no_differences(self, replicas: Replicas) -> None:
        alike = [1.0, 1.0, 1.0]
        assert factors(replicas) == GpuFactors(
            alike, alike, alike, turns=[], home_shares={}, unknown=[]
        )


class TestMixedFleet:
    def test_has_the_ratios_to_the_median_endpoint(self, mixed: Replicas) -> None:
        found = factors(mixed)
        assert (found.prompts, found.steps) == ([2.0, 1.0, 0.5], [3.0, 1.0, 0.5])

    def test_values_copies_less_on_slow_endpoints(self, mixed: Replicas) -> None:
        assert factors(mixed).copies == [0.5, 1.0, 1.0]

    def test_knows_which_endpoints_have_not_been_measured(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow, unknown, fast = replicas.addresses
        known = frozenset([unknown])
        found = Slowness({slow: 2.0, unknown: 1.2, fast: 0.5}, {}, unknown=known)
        set_slowness(monkeypatch, replicas, found)
        assert factors(replicas).unknown == [1]


class TestHomeShares:
    def of(self, monkeypatch: pytest.MonkeyPatch, *prompts: float) -> list[float]:
        """Return the shares of endpoints that take these times for a prompt."""
        replicas = Replicas(len(prompts))
        found = Slowness(dict(zip(replicas.addresses, prompts, strict=True)), {})
        set_slowness(monkeypatch, replicas, found)
        return [factors(replicas).home_shares[one] for one in replicas.addresses]

    def test_are_the_cubes_of_the_speeds_if_these_differ_little(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.of(monkeypatch, 1.0, 1.25) == pytest.approx([1.0, 0.8**3])

    @pytest.mark.parametrize("slow", [1, 2, 7, 63])
    def test_of_the_slow_endpoints_are_higher_if_few_are_fast(
        self, slow: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fast, *others = self.of(monkeypatch, 1.0, *[2.0] * slow)
        share_of_speed = 1 / (1 + slow / 2)
        assert fast / (fast + sum(others)) <= 1.25 * share_of_speed * 1.0001
        assert fast == 1
        assert all(0.5**3 <= other < 0.5 for other in others)

    def test_are_unknown_until_all_endpoints_are_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(2)
        slow, new = replicas.addresses
        found = Slowness({slow: 2.0}, {}, unknown=frozenset([new]))
        set_slowness(monkeypatch, replicas, found)
        assert factors(replicas).home_shares == {}

    @given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=20))
    def test_are_higher_for_faster_endpoints(self, prompts: list[float]) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            shares = self.of(monkeypatch, *prompts)
        assert max(shares) == pytest.approx(1)
        by_speed = [share for _, share in sorted(zip(prompts, shares, strict=True))]
        assert all(by_speed[n] >= by_speed[n + 1] * 0.9999 for n in range(len(shares) - 1))


class TestLaterTurns:
    @pytest.fixture(autouse=True)
    def prompts(self, mixed: Replicas) -> None:
        mixed.signals.backlog.add(mixed.addresses[0], 1_000)

    def test_cost_more_on_a_slower_endpoint(
        self, mixed: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        continuing(2 / 3, monkeypatch)
        slow, usual, fast = 2 * 1_000 + 3 * 200, 1_000 + 200, 0.5 * (1_000 + 200)
        expected = [2 * (slow - fast), 2 * (usual - fast), 0]
        assert factors(mixed).turns == pytest.approx(expected)

    def test_are_a_part_of_the_costs(
        self, mixed: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        continuing(0.5, monkeypatch)
        found = costs(mixed)
        found.of(Work(1_000, {}))
        assert [found.later_turns(position) for position in range(3)] == factors(mixed).turns

    def test_cost_nothing_if_no_session_continues(
        self, mixed: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        continuing(0.0, monkeypatch)
        assert factors(mixed).turns == [0, 0, 0]

    @pytest.mark.parametrize("share", [0.8, 0.99, 1.0])
    def test_are_four_at_most(
        self, share: float, mixed: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        continuing(share, monkeypatch)
        _, usual, fast = factors(mixed).turns
        assert usual - fast == pytest.approx(4 * 0.5 * (1_000 + 200))

    def test_cost_most_where_the_history_may_be_evicted(
        self, mixed: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        continuing(0.5, monkeypatch)
        slow, usual, fast = factors(mixed, evicting=(2,)).turns
        assert fast == slow > usual == 0

    def test_cost_the_same_if_all_endpoints_evict(
        self, mixed: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        continuing(0.5, monkeypatch)
        assert factors(mixed, evicting=(0, 1, 2)).turns == [0, 0, 0]


class TestSession:
    @pytest.fixture(autouse=True)
    def speeds(self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
        *_, fast = replicas.addresses
        found = Slowness({fast: 0.6}, {})
        set_slowness(monkeypatch, replicas, found)
        monkeypatch.setattr(replicas.signals.backlog, "mean", 2_000)

    def moves(self, replicas: Replicas) -> bool:
        """Return True if a session on the first endpoint moves to the fast one."""
        here, _, fast = replicas.addresses
        history = prompt("history", 4_000)
        replicas.signals.prefixes.sent(here, history.blocks)
        following = Query(prompt=prompt("turn", 2_000, after=history))
        return replicas.first(following).endpoint.address == fast

    def test_moves_to_a_faster_endpoint_if_its_later_turns_save_enough_there(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        continuing(0.0, monkeypatch)
        assert not self.moves(replicas)
        replicas.clock.now += 1
        continuing(0.8, monkeypatch)
        assert self.moves(replicas)

    def test_stays_if_the_faster_endpoint_evicts_sessions(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        *_, fast = replicas.addresses
        age = {fast: 1.0}.get
        monkeypatch.setattr(replicas.signals.prefixes, "age", age)
        monkeypatch.setattr(Contexts, "continued_after", lambda *given: 0.03)
        continuing(0.8, monkeypatch)
        assert not self.moves(replicas)


class TestUnknownEndpoint:
    @pytest.fixture
    def addresses(self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        slow, unknown, fast = replicas.addresses
        prompts = {slow: 2.0, unknown: 1.25, fast: 0.5}
        steps = {slow: 1.5, unknown: 1.0, fast: 0.5}
        found = Slowness(prompts, steps, unknown=frozenset([unknown]))
        set_slowness(monkeypatch, replicas, found)
        continuing(0.5, monkeypatch)
        return replicas.addresses

    def test_costs_as_much_as_the_fastest_one_while_it_is_idle(
        self, replicas: Replicas, addresses: list[str]
    ) -> None:
        for address in addresses:  # sessions pause there, and others had requests a while ago
            replicas.signals.totals.of(address).paused = 3
            replicas.signals.totals.of(address).requests = 0.4
        slow, unknown, fast = costs(replicas).of(Work(1_000, {}))
        assert unknown == fast < slow

    @pytest.mark.parametrize(("requests", "backlog"), [(1, 0.0), (0, 1.0)])
    def test_costs_more_with_requests(
        self, requests: int, backlog: float, replicas: Replicas, addresses: list[str]
    ) -> None:
        for address in addresses:
            replicas.signals.totals.of(address).requests = requests
            replicas.signals.totals.of(address).backlog = backlog
        slow, unknown, fast = costs(replicas).of(Work(1_000, {}))
        assert fast < unknown < slow

    def test_costs_more_if_it_stays_unknown_after_some_requests(
        self, replicas: Replicas, addresses: list[str]
    ) -> None:
        _, unknown, _ = replicas.snapshot.endpoints
        for tried in range(8):
            slow, middle, fast = costs(replicas).of(Work(1_000, {}))
            assert middle == fast, tried
            replicas.ledger.acquire("llama", unknown).release()
        slow, middle, fast = costs(replicas).of(Work(1_000, {}))
        assert fast < middle < slow


class TestNearlyEqualEndpoints:
    def test_do_not_include_those_without_the_history_if_later_turns_cost_much_everywhere(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        *_, fast = replicas.snapshot.endpoints
        found = Slowness({fast.address: 0.5}, {fast.address: 0.5})
        set_slowness(monkeypatch, replicas, found)
        replicas.load(fast, 200, backlog=100_000)
        monkeypatch.setattr(replicas.signals.backlog, "mean", 4_000)
        continuing(0.8, monkeypatch)
        homes = list(replicas.snapshot.endpoints[:2])
        for number in range(40):
            home = homes[number % 2]
            history = prompt(f"{number}", 256)
            replicas.signals.prefixes.sent(home.address, history.blocks)
            following = Query(key=number, prompt=prompt(f"turn {number}", 64, after=history))
            assert replicas.first(following).endpoint == home
