"""Properties of the engine's model, and its equivalence with the reference scheduler."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.engine.replica import Profile, Replica, SimRequest
from extproc.lab.stand_ins.lora_gauge import LoraGauge
from tests.lab.engine.reference_scheduler import ReferenceScheduler
from tests.lab.engine.replicas import BLOCK, TokenEvent, finish, request


@dataclass(frozen=True)
class Planned:
    """A request of the property tests: its sizes, its arrival and its abort."""

    prompt: int
    output: int
    shared: int
    at_step: int
    abort_after: int | None
    """Steps from its submission to its abort; None for a request that is not aborted."""

    in_step: bool
    """True if it is aborted during a step, False if between two."""

    adapter: str = ""


def plans(adapters: st.SearchStrategy[str]) -> st.SearchStrategy[list[Planned]]:
    return st.lists(
        st.builds(
            Planned,
            prompt=st.integers(1, 120),
            output=st.integers(1, 40),
            shared=st.integers(0, 8),
            at_step=st.integers(0, 30),
            abort_after=st.none() | st.integers(0, 40),
            in_step=st.booleans(),
            adapter=adapters,
        ),
        min_size=1,
        max_size=12,
    )


PLANS = plans(st.just(""))
PLANS_WITH_ADAPTERS = plans(st.sampled_from(["", "a", "b", "c", "d"]))
PROFILES = st.builds(
    Profile,
    name=st.just("any"),
    step_base_seconds=st.just(0.041),
    seconds_per_context_token=st.just(0.5e-6),
    admission_seconds=st.just(0.010),
    prefill_tokens_per_second=st.just(4_300.0),
    kv_tokens=st.integers(10, 30).map(lambda blocks: blocks * BLOCK),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 300),
    chunked_prefill=st.booleans(),
    max_prompt_tokens_with_decoding=st.sampled_from([0, 1, 40]),
)
PROFILES_WITH_LORA = st.builds(replace, PROFILES, max_loras=st.integers(1, 3))


def check_limits(replica: Replica) -> None:
    cache = replica.cache
    assert 0 <= cache.used <= cache.capacity
    assert cache.used + cache.free == cache.capacity
    assert 0.0 <= replica.kv_usage <= 1.0
    assert replica.running <= replica.profile.max_num_seqs
    assert len(replica.running_adapters) <= replica.profile.max_loras


def check_labels(replica: Replica) -> None:
    """Check that the gauge lists exactly the adapters that have requests."""
    gauge = LoraGauge(replica, separate=True)
    gauge.stamp(1.0)
    (labels,) = gauge.series
    running, waiting = (set(filter(None, names.split(","))) for names in labels)
    assert running == {name for name, n in replica.running_adapters.items() if n}
    assert waiting == {name for name, n in replica.waiting_adapters.items() if n}
    assert replica.running_adapters.total() <= replica.running
    assert replica.waiting_adapters.total() <= replica.waiting
    assert set(replica.answering_adapters) <= running | waiting


def play(profile: Profile, plans: list[Planned]) -> tuple[Replica, list[TokenEvent], set[int]]:
    """Run the plans; return the replica, its events and the ids of aborted requests."""
    cached: dict[int, int] = {}
    replica, events, finished, aborted = (
        Replica(profile),
        list[TokenEvent](),
        set[int](),
        set[int](),
    )

    def abort(number: int, in_step: bool, now: int) -> None:
        plan = plans[number]
        due = plan.abort_after is not None and now >= plan.at_step + plan.abort_after
        if due and plan.in_step == in_step and number not in finished | aborted:
            replica.abort(number)
            aborted.add(number)

    for now in range(100_000):
        for number, plan in enumerate(plans):
            if plan.at_step == now:
                replica.submit(
                    request(number, plan.prompt, plan.output, plan.shared, adapter=plan.adapter)
                )
            if plan.at_step <= now:
                abort(number, False, now)
        planned = replica.begin_step()
        check_limits(replica)
        for number, plan in enumerate(plans):
            if plan.at_step <= now:
                abort(number, True, now)
        if planned is not None:
            assert planned >= profile.step_base_seconds
            new = finish(replica, cached)
            finished |= {event.request_id for event in new if event.finished}
            events += new
            if profile.max_loras:
                check_labels(replica)
        elif now > 30:
            break
        check_limits(replica)
    else:
        raise AssertionError("the replica never becomes idle")
    return replica, events, aborted


@settings(deadline=None)
@given(PROFILES, PLANS)
def test_every_request_gets_all_its_tokens_or_is_aborted(
    profile: Profile, plans: list[Planned]
) -> None:
    check_every_request(profile, plans)


@settings(deadline=None)
@given(PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS)
def test_every_request_with_an_adapter_gets_all_its_tokens_or_is_aborted(
    profile: Profile, plans: list[Planned]
) -> None:
    check_every_request(profile, plans)


def check_every_request(profile: Profile, plans: list[Planned]) -> None:
    replica, events, aborted = play(profile, plans)
    tokens = Counter(event.request_id for event in events)
    finishes = Counter(event.request_id for event in events if event.finished)
    firsts = Counter(event.request_id for event in events if event.first)
    for number, plan in enumerate(plans):
        if number in aborted:
            assert tokens[number] < plan.output
            assert finishes[number] == 0
        else:
            assert tokens[number] == plan.output
            assert finishes[number] == firsts[number] == 1
    assert (replica.running, replica.waiting, replica.cache.used) == (0, 0, 0)
    assert replica.generation_tokens_total == len(events)


@settings(deadline=None)
@given(PROFILES, PLANS)
def test_cache_hits_exclude_the_last_prompt_token(profile: Profile, plans: list[Planned]) -> None:
    _, events, _ = play(profile, plans)
    for event in events:
        most = (plans[event.request_id].prompt - 1) // BLOCK * BLOCK
        assert 0 <= event.cached_tokens <= most
        assert event.cached_tokens % BLOCK == 0


@settings(deadline=None)
@given(PROFILES, PLANS)
def test_first_tokens_follow_the_order_of_arrival(profile: Profile, plans: list[Planned]) -> None:
    _, events, _ = play(profile, plans)
    arrivals = [(plans[e.request_id].at_step, e.request_id) for e in events if e.first]
    assert arrivals == sorted(arrivals)


@settings(deadline=None)
@given(PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS)
def test_first_tokens_of_an_adapter_follow_the_order_of_arrival(
    profile: Profile, plans: list[Planned]
) -> None:
    _, events, _ = play(profile, plans)
    for adapter in {plan.adapter for plan in plans}:
        firsts = [e.request_id for e in events if e.first]
        arrivals = [(plans[n].at_step, n) for n in firsts if plans[n].adapter == adapter]
        assert arrivals == sorted(arrivals)


@settings(deadline=None)
@given(PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS)
def test_equal_runs_give_equal_events(profile: Profile, plans: list[Planned]) -> None:
    assert play(profile, plans)[1] == play(profile, plans)[1]


@settings(deadline=None)
@given(PROFILES | PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS, st.sampled_from([1, 2, 3, 16]))
def test_is_equivalent_to_the_reference_scheduler(
    profile: Profile, plans: list[Planned], block_size: int
) -> None:
    profile = replace(profile, block_size=block_size)
    fast, plain = Replica(profile), Replica(profile, ReferenceScheduler)
    cached: dict[int, int] = {}
    expected: dict[int, int] = {}
    for now in range(100_000):
        for number, plan in enumerate(plans):
            if plan.at_step == now:
                new = planned_request(number, plan, profile)
                fast.submit(new)
                plain.submit(new)
            if plan.abort_after is not None and now == plan.at_step + plan.abort_after:
                fast.abort(number)
                plain.abort(number)
        seconds = plain.begin_step()
        assert fast.begin_step() == (None if seconds is None else pytest.approx(seconds))
        if seconds is not None:
            assert finish(fast, cached) == finish(plain, expected)
        elif now > 80:
            break
        assert (fast.running, fast.waiting, fast.kv_usage) == (
            plain.running,
            plain.waiting,
            plain.kv_usage,
        )
        assert fast.loras.in_slots == plain.loras.in_slots
    assert fast.preemptions == plain.preemptions
    assert fast.prefix_cache_hits == plain.prefix_cache_hits
    assert fast.cache.findable == plain.cache.findable


def planned_request(number: int, plan: Planned, profile: Profile) -> SimRequest:
    """Return a request for any block size; without LoRA it uses the base model."""
    adapter = plan.adapter if profile.max_loras else ""
    shared = plan.shared * BLOCK // profile.block_size
    full = (plan.prompt + plan.output) // profile.block_size
    blocks = [("shared", adapter, i) if i < shared else (number, i) for i in range(full)]
    return SimRequest(number, plan.prompt, plan.output, blocks, adapter)
