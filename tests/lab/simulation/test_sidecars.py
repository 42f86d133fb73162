"""The sidecars of a fleet: the product's own decisions, from each one's own information."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters.vllm.schedule import FIRST_READINGS
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.report import Load, PrefillTotals, Report, StepTotals
from extproc.core.fleet.signals import Signals
from extproc.core.request.refusals import ModelNotFound
from extproc.core.routing.decision import Decision
from extproc.core.schema import LoadBalancingSpec, PrefixHashSpec
from extproc.core.schema.load_balancing import StrategyName
from extproc.core.schema.values import PREFIX_SOURCES
from extproc.lab.engine.profile import Profile
from extproc.lab.engine.replica import Replica, SimRequest
from extproc.lab.simulation import sidecars
from extproc.lab.simulation.prompts import EVERYTHING, SHIPPED, Prompts, Shown
from extproc.lab.simulation.sidecars import MODEL, Routing, Sidecar
from extproc.lab.simulation.timeline import Timeline
from extproc.lab.workloads.text import document
from extproc.lab.workloads.workload import Api, Segment, Turn
from tests.core.builders import prefix_of
from tests.extent import extent
from tests.lab.simulation.builders import BLOCK, balancing, engine, turn

STRATEGIES = sorted(set(get_args(StrategyName)) - {"Chain"})
READING = {
    *("LeastQueue", "LeastKVCache", "QueueKVCache", "LoraQueue", "LoraKVCache", "LowLatency"),
    "PrefixCache",
}
SPEC = balancing("LeastLoad")
SLOW = {"intervalSeconds": 0.5, "idleIntervalSeconds": 2.0, "staleAfterSeconds": 4.0}
BODY_SOURCES = [source for source in PREFIX_SOURCES if not source.startswith("Header:")]


def addresses(replicas: int) -> list[str]:
    return Routing(SPEC).endpoints(replicas)


class Scene:
    """Sidecars in front of the same engines. Only `release` ends a request."""

    def __init__(
        self,
        spec: LoadBalancingSpec,
        replicas: int = 8,
        sidecars: int = 1,
        adapters: tuple[str, ...] = (),
        profile: Profile | None = None,
    ) -> None:
        self.timeline = Timeline()
        self.replicas = [Replica(profile or engine()) for _ in range(replicas)]
        routing = Routing(spec, adapters)
        self.sidecars = [
            Sidecar(self.timeline, self.replicas, routing, f"{number}")
            for number in range(sidecars)
        ]

    def decide(self, asked: Turn | None = None, sidecar: int = 0, api: Api = "chat") -> Decision:
        return self.sidecars[sidecar].decide(api, asked or turn("question"))

    def home(self, asked: Turn, api: Api = "chat") -> str:
        """Return the endpoint of a request while nothing else is in flight."""
        decision = self.decide(asked, api=api)
        decision.lease.release()
        return decision.address

    def wait(self, until: float) -> None:
        self.timeline.at(until, lambda: None)
        self.timeline.run(lambda: self.timeline.now >= until)


class Recorded:
    """Ledgers and signals of all sidecars created during a test."""

    def __init__(self) -> None:
        self.ledgers: list[Ledger] = []
        self.signals: list[Signals] = []
        self.read: defaultdict[str, list[float]] = defaultdict(list)
        """Times of each address's scrapes."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    found = Recorded()

    class RecordedLedger(Ledger):
        def __init__(self) -> None:
            super().__init__()
            found.ledgers.append(self)

    class RecordedSignals(Signals):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.signals.append(self)

        def record_scrape(self, address: str, report: Report, inflight: int, sent: int = 0) -> None:
            found.read[address].append(self.clock())
            super().record_scrape(address, report, inflight, sent)

    monkeypatch.setattr(sidecars, "Ledger", RecordedLedger)
    monkeypatch.setattr(sidecars, "Signals", RecordedSignals)
    return found


class TestDecisions:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_every_strategy_decides(self, strategy: str) -> None:
        decision = Scene(balancing(strategy), replicas=3).decide()
        assert decision.strategy == strategy
        assert decision.address in addresses(3)
        assert (decision.model, decision.candidates, decision.fallback) == (MODEL, 3, None)

    def test_a_custom_chain_decides(self) -> None:
        spec = balancing("Chain", chain=[{"filter": "LeastQueue"}, {"filter": "PrefixHash"}])
        scene = Scene(spec)
        assert len({scene.home(turn("question")) for _ in range(5)}) == 1

    def test_a_request_counts_until_its_lease_is_released(self, recorded: Recorded) -> None:
        scene = Scene(balancing("LeastLoad"), replicas=1)
        (ledger,) = recorded.ledgers
        leases = [scene.decide().lease for _ in range(3)]
        assert dict(ledger.loads) == {addresses(1)[0]: 3}
        for lease in leases:
            lease.release()
        assert dict(ledger.loads) == {}

    def test_least_load_spreads_requests_evenly(self) -> None:
        scene = Scene(balancing("LeastLoad"))
        chosen = Counter(scene.decide().address for _ in range(24))
        assert set(chosen.values()) == {3}

    def test_prefix_hash_spills_at_the_configured_bound(self) -> None:
        tight, loose = (
            Scene(balancing("PrefixHash", prefixHash={"meanLoadFactor": factor}), replicas=4)
            for factor in (100, 400)
        )
        assert len({tight.decide().address for _ in range(8)}) == 4
        assert len({loose.decide().address for _ in range(8)}) == 1

    def test_the_seed_determines_random_choices(self) -> None:
        def chosen(seed: str) -> list[str]:
            replicas = [Replica(engine()) for _ in range(8)]
            sidecar = Sidecar(Timeline(), replicas, Routing(balancing("Random")), seed)
            return [sidecar.decide("chat", turn("question")).address for _ in range(20)]

        assert chosen("1") == chosen("1") != chosen("2")

    @pytest.mark.parametrize("replicas", [1, 250, 251, 1_000])
    def test_a_fleet_of_any_size_has_addresses(self, replicas: int) -> None:
        assert len(set(addresses(replicas))) == replicas
        scene = Scene(balancing("RoundRobin", prefixHash={"replication": 1}), replicas)
        assert len({scene.decide().address for _ in range(replicas)}) == replicas

    def test_configured_addresses_give_the_ring_positions(self) -> None:
        def home(*given: str) -> str:
            replicas = [Replica(engine()) for _ in given]
            routing = Routing(balancing("PrefixHash"), addresses=given)
            return Sidecar(Timeline(), replicas, routing, "").decide("chat", turn("a", 50)).address

        first, second = "192.0.2.1:8000", "192.0.2.2:8000"
        assert home(first, second) == home(second, first)
        pairs = [(f"192.0.2.{n}:8000", f"192.0.2.{n + 1}:8000") for n in range(1, 20, 2)]
        # Their ring positions decide if it is the first or the second of the two.
        assert {pair.index(home(*pair)) for pair in pairs} == {0, 1}

    def test_each_engine_needs_an_address(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            Sidecar(Timeline(), [Replica(engine())], Routing(SPEC, addresses=["a:1", "b:1"]), "")


class TestPrefixCache:
    def test_finds_a_repeated_prompt_and_predicts_the_hit(self) -> None:
        scene = Scene(balancing("PrefixCache"))
        first = scene.decide(turn("question", 1000))
        first.lease.release()
        again = scene.decide(turn("question", 1000))
        assert again.address == first.address
        assert first.prediction == (1000, 0)
        assert again.prediction == (1000, 1000 // 64 * 64)

    @pytest.mark.parametrize(
        ("shown", "cached"),
        [
            (Shown(131_072, 65_536), 65_536 // 4),
            (SHIPPED, 100_000 // 64 * 64),
            (EVERYTHING, 100_000 // 64 * 64),
        ],
    )
    def test_sees_no_more_of_a_prompt_than_envoy_shows(self, shown: Shown, cached: int) -> None:
        timeline = Timeline()
        engines = [Replica(engine(kv_tokens=200_000))]
        sidecar = Sidecar(timeline, engines, Routing(balancing("PrefixCache"), shown=shown), "")
        timeline.at(1.0, lambda: None)  # by then it knows the size of the caches
        timeline.run(lambda: timeline.now >= 1.0)
        sidecar.decide("chat", turn("book", 100_000)).lease.release()
        assert sidecar.decide("chat", turn("book", 100_000)).prediction == (100_000, cached)

    def test_uses_the_session_header_for_the_home_endpoint(self) -> None:
        keys = {"prefixSource": "Header:x-session"}
        scene = Scene(balancing("PrefixCache", prefixHash=keys))
        (sidecar,) = scene.sidecars
        rules = Segment("rules", 1000, "system")
        homes: Counter[tuple[int, str]] = Counter()
        for number in range(64):
            asked = turn(f"{number}", 50, opening=[rules._replace(name=f"rules {number}")])
            decision = sidecar.decide("chat", asked, f"session {number % 4}")
            decision.lease.release()
            homes[number % 4, decision.address] += 1
        assert len(homes) == 4

    def test_counts_prompts_as_work_until_their_responses_begin(self, recorded: Recorded) -> None:
        scene = Scene(balancing("PrefixCache"), replicas=1)
        (signals,) = recorded.signals
        leases = [scene.decide(turn(f"{n}", 1000)).lease for n in range(3)]
        assert dict(signals.backlog.tokens) == {addresses(1)[0]: 3000}
        leases[0].finish_prefill()
        leases[1].release()
        assert dict(signals.backlog.tokens) == {addresses(1)[0]: 1000}


class TestSeveralSidecars:
    def test_each_counts_only_its_own_requests(self) -> None:
        scene = Scene(balancing("LeastLoad"), sidecars=2)
        first = {scene.decide(sidecar=0).address for _ in range(7)}
        # The second has sent none yet, so all engines are equal to it.
        second = {scene.decide(sidecar=1).address for _ in range(8)}
        assert (len(first), len(second)) == (7, 8)

    def test_random_choices_differ(self) -> None:
        scene = Scene(balancing("LeastLoad"), sidecars=2)
        order = [[scene.decide(sidecar=n).address for _ in range(8)] for n in range(2)]
        assert order[0] != order[1]

    def test_agree_on_the_home_of_a_system_prompt(self) -> None:
        # Each has seen other prompts before, so the numbers of texts must be shared.
        prompts = Prompts()
        engines = [Replica(engine()) for _ in range(8)]
        routing = Routing(balancing("PrefixCache"))
        homes = set()
        for number in range(4):
            sidecar = Sidecar(Timeline(), engines, routing, f"{number}", prompts=prompts)
            sidecar.decide("chat", turn(f"first {number}", 100)).lease.release()
            rules = Segment("rules", 1000, "system")
            asked = turn(f"question {number}", 50, opening=[rules])
            homes.add(sidecar.decide("chat", asked).address)
        assert len(homes) == 1

    def test_have_the_same_ring(self) -> None:
        scene = Scene(balancing("PrefixHash"), sidecars=3)
        homes = {scene.decide(turn("question", 50), sidecar=n).address for n in range(3)}
        assert len(homes) == 1


def opened(system: int, user: int, more: str) -> Turn:
    """Return a chat with a common first message; only `more` differs."""
    opening = [Segment("system", system, "system"), Segment("user", user)]
    return turn(more, 30, opening=opening)


class TestPrefixKeys:
    @pytest.mark.parametrize("api", get_args(Api))
    @pytest.mark.parametrize("source", BODY_SOURCES)
    def test_requests_with_one_prefix_go_to_one_endpoint(self, source: str, api: Api) -> None:
        scene = Scene(balancing("PrefixHash", prefixHash={"prefixSource": source}))
        # 100 characters are 25 tokens; beyond them each prompt is different.
        homes = {scene.home(opened(30, 30, f"{n}"), api) for n in range(20)}
        assert len(homes) == 1

    @pytest.mark.parametrize("api", get_args(Api))
    @pytest.mark.parametrize("source", BODY_SOURCES)
    def test_requests_with_other_prefixes_spread(self, source: str, api: Api) -> None:
        scene = Scene(balancing("PrefixHash", prefixHash={"prefixSource": source}))
        homes = {scene.home(turn(f"{n}", 30), api) for n in range(40)}
        assert len(homes) == 8

    def test_the_first_user_message_can_be_long_or_short(self) -> None:
        scene = Scene(balancing("PrefixHash"))
        homes = {scene.home(turn("question", length)) for length in (25, 26, 100, 5_000)}
        assert len(homes) == 1

    def test_a_shared_system_prompt_counts_only_for_sources_that_read_it(self) -> None:
        opening = [Segment("system", 30, "system")]

        def homes(source: str) -> int:
            scene = Scene(balancing("PrefixHash", prefixHash={"prefixSource": source}))
            return len({scene.home(turn(f"{n}", 30, opening=opening)) for n in range(40)})

        assert homes("FirstUserMessage") == 8
        assert homes("SystemAndFirstUserMessage") == 1
        assert homes("PromptHead") == 1

    def test_a_longer_key_separates_more_requests(self) -> None:
        def homes(characters: int) -> int:
            keys = {"prefixCharLength": characters, "prefixSource": "PromptHead"}
            scene = Scene(balancing("PrefixHash", prefixHash=keys))
            return len({scene.home(opened(30, 30, f"{n}")) for n in range(40)})

        assert (homes(100), homes(10_000)) == (1, 8)


segments = st.builds(
    Segment,
    st.sampled_from("abcd"),
    st.integers(1, 12),
    st.sampled_from(["system", "user", "assistant"]),
)


@settings(max_examples=extent(40, 300))
@given(
    st.lists(segments, min_size=1, max_size=6).map(tuple),
    st.sampled_from(get_args(Api)),
    st.sampled_from(BODY_SOURCES),
    st.integers(1, 120),
)
def test_the_shown_part_of_a_prompt_gives_the_key_of_the_whole(
    prompt: tuple[Segment, ...], api: Api, source: str, characters: int
) -> None:
    keys = {"prefixCharLength": characters, "prefixSource": source}
    spec = PrefixHashSpec.model_validate(keys)
    shown, whole = document(api, prompt, characters), document(api, prompt)
    assert prefix_of(shown, {}, spec) == prefix_of(whole, {}, spec)


class TestAdapters:
    def test_a_request_for_one_belongs_to_the_model(self) -> None:
        scene = Scene(balancing("PrefixHash"), adapters=("sql", "poems"))
        decision = scene.decide(turn("question", adapter="poems"))
        assert (decision.model, decision.adapter, decision.rename) == (MODEL, "poems", None)

    def test_a_request_without_one_uses_the_base_model(self) -> None:
        assert Scene(balancing("PrefixHash"), adapters=("sql",)).decide().adapter == ""

    def test_an_unconfigured_adapter_is_an_error(self) -> None:
        with pytest.raises(ModelNotFound):
            Scene(balancing("PrefixHash")).decide(turn("question", adapter="sql"))

    def test_equal_prompts_of_different_adapters_have_different_keys(self) -> None:
        names = tuple(f"adapter-{n}" for n in range(40))
        scene = Scene(balancing("PrefixHash"), adapters=names)
        assert len({scene.home(turn("question", 50, adapter=name)) for name in names}) == 8


class TestScrapes:
    @pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - READING))
    def test_a_strategy_without_metrics_scrapes_nothing(
        self, strategy: str, recorded: Recorded
    ) -> None:
        scene = Scene(balancing(strategy))
        scene.timeline.run(lambda: False)
        assert scene.timeline.now == 0.0
        assert not recorded.read

    @pytest.mark.parametrize("strategy", sorted(READING))
    def test_others_have_scraped_every_engine_before_the_first_request(
        self, strategy: str, recorded: Recorded
    ) -> None:
        Scene(balancing(strategy))
        assert recorded.read == {address: [0.0] for address in addresses(8)}

    def test_idle_engines_have_the_idle_interval(self, recorded: Recorded) -> None:
        scene = Scene(balancing("LeastQueue", signals=SLOW))
        scene.wait(100.0)
        for first, *times in recorded.read.values():
            assert times[0] - first <= 2.2
            gaps = [b - a for a, b in pairwise(times)]
            assert 1.8 <= min(gaps) < 1.9 < 2.1 < max(gaps) <= 2.2
            assert len(times) == pytest.approx(50, abs=5)

    def test_engines_with_requests_are_scraped_more_often(self, recorded: Recorded) -> None:
        scene = Scene(balancing("LeastQueue", signals=SLOW), replicas=2)
        busy = scene.decide()
        scene.wait(100.0)
        (idle,) = set(addresses(2)) - {busy.address}
        assert len(recorded.read[idle]) == pytest.approx(50, abs=5)
        gaps = [b - a for a, b in pairwise(recorded.read[busy.address][1:])]
        first, rest = gaps[: FIRST_READINGS - 1], gaps[FIRST_READINGS:]
        assert all(0.1125 <= gap <= 0.1375 for gap in first), "its times stay unknown"
        assert all(0.45 <= gap <= 0.55 for gap in rest)

    def test_an_engine_is_scraped_soon_after_its_first_request(self, recorded: Recorded) -> None:
        signals = {"intervalSeconds": 0.5, "idleIntervalSeconds": 50, "staleAfterSeconds": 100}
        scene = Scene(balancing("LeastQueue", signals=signals), replicas=1)
        scene.wait(10.0)
        (reads,) = recorded.read.values()
        before = len(reads)
        scene.decide()
        scene.wait(10.3)
        assert len(reads) > before

    def test_all_engines_together_are_scraped_200_times_a_second(self, recorded: Recorded) -> None:
        signals = {"intervalSeconds": 0.05, "idleIntervalSeconds": 0.05}
        scene = Scene(balancing("LeastQueue", signals=signals), replicas=50)
        scene.wait(10.0)
        assert sum(map(len, recorded.read.values())) == pytest.approx(2_000, abs=150)

    def test_scrapes_are_not_synchronized(self, recorded: Recorded) -> None:
        scene = Scene(balancing("LeastQueue"), sidecars=3)
        scene.wait(20.0)
        times = [time for each in recorded.read.values() for time in each if time]
        assert len(set(times)) == len(times)

    def test_a_report_matches_the_engines_metrics(self, recorded: Recorded) -> None:
        profile = engine(max_num_seqs=1, max_loras=2, kv_tokens=10 * BLOCK)
        scene = Scene(balancing("LeastQueue"), replicas=1, adapters=("a", "b"), profile=profile)
        (replica,) = scene.replicas
        replica.submit(SimRequest(1, 60, 20, list(range(5)), "a"))
        replica.submit(SimRequest(2, 60, 20, list(range(10, 15)), "b"))
        replica.begin_step()
        replica.finish_step()
        scene.wait(1.0)
        (signals,) = recorded.signals
        reading = signals.latest(addresses(1)[0])
        assert reading is not None
        assert reading.report == Report(
            Load(waiting=1, kv_usage=0.4),
            running=1,
            max_loras=2,
            running_adapters=frozenset("a"),
            waiting_adapters=frozenset("b"),
            block_size=BLOCK,
            blocks=10,
            prompt_tokens=60,
            cached_tokens=0,
            first_tokens=1,
            finished=0,
            preemptions=0,
            first_token_seconds=0.0,
            steps=StepTotals(1, 60, 0.0, 0),
            prefills=PrefillTotals(0, 0.0, 0),
            responded_tokens=60,
        )

    def test_a_report_omits_lora_if_it_is_off(self, recorded: Recorded) -> None:
        scene = Scene(balancing("LeastQueue"), replicas=1)
        scene.wait(1.0)
        reading = recorded.signals[0].latest(addresses(1)[0])
        assert reading is not None
        assert reading.report is not None
        assert reading.report.max_loras is None

    def test_a_sidecar_learns_of_queues_from_other_sidecars(self) -> None:
        def chosen(strategy: str) -> set[str]:
            scene = Scene(balancing(strategy), replicas=2, profile=engine(max_num_seqs=1))
            for number in range(30):
                scene.replicas[0].submit(SimRequest(number, 8, 4, []))
            scene.replicas[0].begin_step()
            scene.replicas[0].finish_step()
            scene.wait(1.0)
            return {scene.decide().address for _ in range(10)}

        first, second = addresses(2)
        assert chosen("LeastQueue") == {second}
        assert chosen("LeastLoad") == {first, second}

    def test_a_sidecar_learns_the_adapters_in_an_engines_batch(self) -> None:
        adapters = ("a", "b")
        scene = Scene(
            balancing("LoraQueue"), replicas=4, adapters=adapters, profile=engine(max_loras=1)
        )
        scene.replicas[2].submit(SimRequest(1, 8, 4, [], "a"))
        scene.replicas[2].begin_step()
        scene.wait(1.0)
        assert scene.decide(turn("question", adapter="a")).address == addresses(4)[2]
        assert scene.decide(turn("question", adapter="b")).address != addresses(4)[2]
