"""The model of one engine: its schedule, its cache, its time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Profile, Replica, SimRequest
from extproc.lab.stand_ins.lora_gauge import LoraGauge
from tests.lab.engine.plain_replica import PlainReplica, TokenEvent

BLOCK = L4_LLAMA_3_1_8B_FP8.block_size

L4 = replace(
    L4_LLAMA_3_1_8B_FP8,
    step_base_seconds=0.041,
    seconds_per_context_token=0.5e-6,
    admission_seconds=0.010,
    prefill_tokens_per_second=4_300.0,
    kv_tokens=58_000,
)
"""Of figures to reckon with, whatever an L4's are fitted to."""


def request(
    number: int,
    prompt: int,
    output: int,
    shared: int = 0,
    prefix: str = "shared",
    adapter: str = "",
) -> SimRequest:
    """A request whose first `shared` blocks are those of its prefix and the rest its own."""
    full = (prompt + output) // BLOCK
    blocks = [(prefix, adapter, i) if i < shared else (number, i) for i in range(full)]
    return SimRequest(number, prompt, output, blocks, adapter)


def small(blocks: int) -> Replica:
    return Replica(replace(L4, kv_tokens=blocks * BLOCK))


def finish(replica: Replica, cached: dict[int, int] | None = None) -> list[TokenEvent]:
    """Ends a step; each of its tokens as an event. `cached` remembers what first ones told."""
    tokens = replica.finish_step()
    known = {} if cached is None else cached
    known.update(tokens.first)
    return [
        TokenEvent(one, one in tokens.first, one in tokens.finished, known.get(one, 0))
        for one in tokens.request_ids
    ]


def step(replica: Replica) -> list[TokenEvent]:
    assert replica.begin_step() is not None
    return finish(replica)


def drain(replica: Replica) -> list[TokenEvent]:
    """Steps until idle; far more of them than any test needs is a livelock."""
    events: list[TokenEvent] = []
    for _ in range(100_000):
        if replica.begin_step() is None:
            return events
        events += finish(replica)
    raise AssertionError("the replica does not come to an end")


class TestGenerating:
    def test_an_idle_replica_has_nothing_to_do(self) -> None:
        assert Replica(L4).begin_step() is None

    def test_a_request_has_a_token_per_step_the_first_with_its_prompt(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 3))
        assert step(replica) == [TokenEvent(1, first=True, finished=False, cached_tokens=0)]
        assert step(replica) == [TokenEvent(1, first=False, finished=False, cached_tokens=0)]
        assert step(replica) == [TokenEvent(1, first=False, finished=True, cached_tokens=0)]
        assert replica.begin_step() is None

    def test_one_token_is_first_and_last(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 1))
        assert step(replica) == [TokenEvent(1, first=True, finished=True, cached_tokens=0)]

    def test_running_and_waiting_are_told_apart(self) -> None:
        replica = Replica(replace(L4, max_num_seqs=2))
        for number in range(3):
            replica.submit(request(number, 100, 5))
        assert (replica.running, replica.waiting) == (0, 3)
        step(replica)
        assert (replica.running, replica.waiting) == (2, 1)
        drain(replica)
        assert (replica.running, replica.waiting) == (0, 0)

    def test_what_arrives_while_a_step_runs_is_in_the_next(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.begin_step()
        replica.submit(request(2, 100, 5))
        assert replica.finish_step().request_ids == [1]
        assert [event.request_id for event in step(replica)] == [1, 2]

    def test_tokens_are_counted(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.submit(request(2, 50, 3))
        drain(replica)
        assert (replica.prompt_tokens_total, replica.generation_tokens_total) == (150, 8)

    def test_a_step_must_end_before_the_next_begins(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.begin_step()
        with pytest.raises(RuntimeError):
            replica.begin_step()

    def test_a_step_must_begin_before_it_ends(self) -> None:
        with pytest.raises(RuntimeError):
            Replica(L4).finish_step()


class TestRefusing:
    @pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (-1, 1)])
    def test_a_request_without_prompt_or_output(self, prompt: int, output: int) -> None:
        with pytest.raises(ValueError, match="at least"):
            Replica(L4).submit(SimRequest(1, prompt, output, []))

    def test_a_request_larger_than_the_whole_cache(self) -> None:
        replica = small(blocks=4)
        with pytest.raises(ValueError, match="65 tokens, but the whole cache holds 64"):
            replica.submit(request(1, 60, 5))
        replica.submit(request(2, 60, 4))
        assert len(drain(replica)) == 4

    def test_ids_that_do_not_match_the_length(self) -> None:
        with pytest.raises(ValueError, match="3 ids"):
            Replica(L4).submit(SimRequest(1, 30, 2, [1, 2, 3]))

    def test_an_id_that_is_in_the_engine(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 2))
        with pytest.raises(ValueError, match="already"):
            replica.submit(request(1, 100, 2))
        drain(replica)
        replica.submit(request(1, 100, 2))


class TestCaching:
    def cached(self, replica: Replica, wanted: SimRequest) -> int:
        replica.submit(wanted)
        return drain(replica)[0].cached_tokens

    def test_a_prompt_seen_before_is_found_but_for_its_last_block(self) -> None:
        replica = Replica(L4)
        assert self.cached(replica, request(1, 402, 5, shared=25)) == 0
        assert self.cached(replica, request(2, 402, 5, shared=25)) == 400
        assert self.cached(replica, request(3, 400, 5, shared=25)) == 384

    def test_the_next_turn_finds_the_answer_too(self) -> None:
        replica = Replica(L4)
        assert self.cached(replica, request(1, 100, 60, shared=10)) == 0
        # 160 tokens were known; the last was never computed, as nothing came after it.
        assert self.cached(replica, request(2, 200, 10, shared=10)) == 144

    def test_requests_of_the_same_step_share_a_prefix(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 402, 1, shared=25))
        replica.submit(request(2, 402, 1, shared=25))
        assert [event.cached_tokens for event in step(replica)] == [0, 400]

    def test_hits_and_queries_are_counted_in_tokens(self) -> None:
        replica = Replica(L4)
        for number in range(3):
            self.cached(replica, request(number, 402, 5, shared=25))
        assert (replica.prefix_cache_queries, replica.prefix_cache_hits) == (1206, 800)

    def test_a_request_that_pushed_a_prefix_out_makes_it_cold(self) -> None:
        replica = small(blocks=30)
        self.cached(replica, request(1, 320, 5, shared=20))
        self.cached(replica, request(2, 440, 5))
        assert self.cached(replica, request(3, 320, 5, shared=20)) < 160

    def test_usage_is_what_running_requests_hold(self) -> None:
        replica = small(blocks=40)
        replica.submit(request(1, 300, 5))
        step(replica)
        assert replica.kv_usage == pytest.approx(19 / 40)
        drain(replica)
        assert replica.kv_usage == 0.0

    def test_a_reset_makes_cold_and_counts_from_zero(self) -> None:
        replica = Replica(L4)
        self.cached(replica, request(1, 402, 5, shared=25))
        replica.reset()
        assert replica.prompt_tokens_total == replica.prefix_cache_queries == 0
        assert self.cached(replica, request(2, 402, 5, shared=25)) == 0


class TestScheduling:
    def test_a_long_prompt_is_computed_in_chunks(self) -> None:
        replica = Replica(replace(L4, max_num_batched_tokens=100, max_num_seqs=32))
        replica.submit(request(1, 250, 2))
        assert [len(step(replica)) for _ in range(4)] == [0, 0, 1, 1]

    def test_running_requests_come_before_new_prompts(self) -> None:
        replica = Replica(replace(L4, max_num_batched_tokens=100, max_num_seqs=32))
        replica.submit(request(1, 100, 9))
        step(replica)
        replica.submit(request(2, 100, 9))
        assert [event.request_id for event in step(replica)] == [1]
        assert [event.request_id for event in step(replica)] == [1, 2]

    def test_nobody_overtakes_a_request_that_waits_for_room(self) -> None:
        replica = small(blocks=20)
        replica.submit(request(1, 160, 20))
        step(replica)
        replica.submit(request(2, 300, 2))
        replica.submit(request(3, 10, 2))
        step(replica)
        assert (replica.running, replica.waiting) == (1, 2)
        firsts = [event.request_id for event in drain(replica) if event.first]
        assert firsts == [2, 3]


class TestPreempting:
    def under_pressure(self) -> Replica:
        """Two requests that fit together until one of them needs a block more."""
        replica = small(blocks=10)
        replica.submit(request(1, 80, 40))
        replica.submit(request(2, 80, 40))
        return replica

    def test_the_latest_arrival_goes_and_comes_back(self) -> None:
        replica = self.under_pressure()
        step(replica)
        assert [event.request_id for event in step(replica)] == [1]
        assert (replica.running, replica.waiting, replica.preemptions) == (1, 1, 1)

    def test_everybody_is_served_in_the_end(self) -> None:
        replica = self.under_pressure()
        events = Counter(event.request_id for event in drain(replica))
        assert events == {1: 40, 2: 40}
        assert replica.generation_tokens_total == 80

    def test_a_preempted_request_has_one_first_token(self) -> None:
        events = drain(self.under_pressure())
        assert [event.request_id for event in events if event.first] == [1, 2]

    def test_a_preempted_request_is_counted_once_in_queries(self) -> None:
        replica = self.under_pressure()
        drain(replica)
        assert (replica.prefix_cache_queries, replica.prompt_tokens_total) == (160, 160)

    def test_a_preempted_request_comes_before_those_that_waited_behind_it(self) -> None:
        replica = self.under_pressure()
        step(replica)
        replica.submit(request(3, 16, 1))
        events = drain(replica)
        assert replica.preemptions == 1
        second = next(i for i, e in enumerate(events) if e.request_id == 2)
        third = next(i for i, e in enumerate(events) if e.request_id == 3)
        assert second < third

    def test_tokens_lost_are_computed_again_and_take_their_time(self) -> None:
        replica = self.under_pressure()
        replica.submit(request(3, 16, 1))
        seconds = []
        while (planned := replica.begin_step()) is not None:
            seconds.append((replica.preemptions, planned))
            replica.finish_step()
        after = [planned for preemptions, planned in seconds if preemptions]
        assert max(after) > L4.step_base_seconds + L4.admission_seconds


class TestAborting:
    def test_an_unknown_request_changes_nothing(self) -> None:
        replica = Replica(L4)
        replica.abort(7)
        assert replica.begin_step() is None

    def test_a_waiting_request(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.abort(1)
        replica.abort(1)
        assert (replica.waiting, replica.begin_step()) == (0, None)

    def test_a_running_request_gives_its_blocks_back(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        step(replica)
        replica.abort(1)
        assert (replica.running, replica.kv_usage) == (0, 0.0)

    def test_a_request_of_the_step_that_runs(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.submit(request(2, 100, 5))
        replica.begin_step()
        replica.abort(1)
        assert replica.finish_step().request_ids == [2]

    def test_an_id_may_come_back_while_the_step_still_runs(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.begin_step()
        replica.abort(1)
        replica.submit(request(1, 100, 2))
        assert replica.finish_step().request_ids == []
        assert len(drain(replica)) == 2

    def test_a_preempted_request(self) -> None:
        replica = small(blocks=10)
        replica.submit(request(1, 80, 40))
        replica.submit(request(2, 80, 40))
        step(replica)
        step(replica)
        assert replica.preemptions == 1
        replica.abort(2)
        assert {event.request_id for event in drain(replica)} == {1}

    def test_a_finished_request_stays_finished(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 2))
        drain(replica)
        replica.abort(1)
        assert replica.generation_tokens_total == 2


class TestAdapters:
    """`max_loras` of them in a batch; who would bring one more waits, and lets others pass."""

    def lora(self, max_loras: int) -> Replica:
        return Replica(replace(L4, max_loras=max_loras))

    def crowd(self, replica: Replica, *adapters: str) -> None:
        """A request for each, numbered from 1."""
        for number, adapter in enumerate(adapters, 1):
            replica.submit(request(number, 100, 5, adapter=adapter))

    def test_a_batch_mixes_adapters_and_the_base_model(self) -> None:
        replica = self.lora(2)
        self.crowd(replica, "a", "", "b", "a")
        assert [event.request_id for event in step(replica)] == [1, 2, 3, 4]

    def test_one_adapter_too_many_waits_and_those_behind_overtake_it(self) -> None:
        replica = self.lora(2)
        self.crowd(replica, "a", "b", "c", "", "b", "d")
        assert [event.request_id for event in step(replica)] == [1, 2, 4, 5]
        assert replica.running_adapters == {"a": 1, "b": 2}
        assert replica.waiting_adapters == {"c": 1, "d": 1}

    def test_it_keeps_its_place_in_the_queue(self) -> None:
        replica = self.lora(1)
        self.crowd(replica, "a", "b", "c", "b", "c")
        firsts = [event.request_id for event in drain(replica) if event.first]
        assert firsts == [1, 2, 4, 3, 5]

    def test_it_comes_as_soon_as_nobody_uses_one_of_the_others(self) -> None:
        replica = self.lora(2)
        replica.submit(request(1, 100, 2, adapter="a"))
        replica.submit(request(2, 100, 9, adapter="b"))
        replica.submit(request(3, 100, 9, adapter="c"))
        assert [event.request_id for event in step(replica)] == [1, 2]
        assert [event.request_id for event in step(replica)] == [1, 2]
        assert [event.request_id for event in step(replica)] == [2, 3]

    def test_a_slot_that_nobody_uses_does_not_keep_anybody_out(self) -> None:
        replica = self.lora(1)
        replica.submit(request(1, 100, 1, adapter="a"))
        drain(replica)
        assert replica.loras.in_slots == ["a"]
        replica.submit(request(2, 100, 1, adapter="b"))
        assert [event.request_id for event in step(replica)] == [2]

    def test_who_waits_for_room_in_the_cache_is_still_not_overtaken(self) -> None:
        replica = Replica(replace(L4, kv_tokens=20 * BLOCK, max_loras=1))
        replica.submit(request(1, 160, 20, adapter="a"))
        step(replica)
        replica.submit(request(2, 100, 2, adapter="b"))
        replica.submit(request(3, 300, 2, adapter="a"))
        replica.submit(request(4, 10, 2, adapter="a"))
        step(replica)
        assert (replica.running, replica.waiting) == (1, 3)

    def test_who_was_admitted_last_is_preempted_whoever_arrived_last(self) -> None:
        replica = Replica(replace(L4, kv_tokens=13 * BLOCK, max_loras=1))
        replica.submit(request(1, 70, 4, adapter="a"))
        replica.submit(request(2, 90, 30, adapter="b"))
        replica.submit(request(3, 80, 60))
        finished = [event.request_id for event in drain(replica) if event.finished]
        # The second is overtaken by the third, and has to make room for it later.
        assert (finished, replica.preemptions) == ([1, 3, 2], 1)

    def test_an_aborted_request_frees_its_adapter_s_place(self) -> None:
        replica = self.lora(1)
        self.crowd(replica, "a", "b")
        step(replica)
        replica.abort(1)
        assert [event.request_id for event in step(replica)] == [2]

    def test_a_request_has_a_token_before_its_adapter_is_told_of(self) -> None:
        replica = Replica(replace(L4, max_loras=2, max_num_batched_tokens=100, max_num_seqs=32))
        replica.submit(request(1, 150, 3, adapter="a"))
        step(replica)
        assert (replica.running_adapters, replica.answering_adapters) == ({"a": 1}, {})
        step(replica)
        assert replica.answering_adapters == {"a": 1}

    def test_without_lora_an_adapter_is_refused(self) -> None:
        with pytest.raises(ValueError, match="LoRA is off"):
            Replica(L4).submit(request(1, 100, 2, adapter="a"))

    def test_each_adapter_finds_only_what_ran_with_it(self) -> None:
        replica = self.lora(2)
        for number, adapter in enumerate(("", "a", "b", "a", "")):
            replica.submit(request(number, 402, 1, shared=25, adapter=adapter))
            drain(replica)
        assert replica.prefix_cache_hits == 800


class TestAdapterTiming:
    PROFILE = replace(L4, max_loras=1, max_cpu_loras=2, lora_load_seconds=3.0)
    STEP = 0.041 + 100 * 0.5e-6 + 0.010 + 100 / 4_300

    def once(self, replica: Replica, number: int, adapter: str) -> float | None:
        replica.submit(request(number, 100, 1, adapter=adapter))
        seconds = replica.begin_step()
        replica.finish_step()
        return seconds

    def test_the_step_that_needs_an_adapter_first_takes_its_loading(self) -> None:
        replica = Replica(self.PROFILE)
        assert self.once(replica, 1, "a") == pytest.approx(self.STEP + 3.0 + 0.01)
        assert self.once(replica, 2, "a") == pytest.approx(self.STEP)

    def test_from_host_memory_it_is_only_copied(self) -> None:
        replica = Replica(self.PROFILE)
        self.once(replica, 1, "a")
        self.once(replica, 2, "b")
        assert self.once(replica, 3, "a") == pytest.approx(self.STEP + 0.01)

    def test_loading_holds_up_everybody_in_the_batch(self) -> None:
        replica = Replica(self.PROFILE)
        replica.submit(request(1, 100, 9))
        step(replica)
        replica.submit(request(2, 100, 1, adapter="a"))
        seconds = replica.begin_step()
        assert seconds is not None
        assert seconds > 3.0
        assert replica.finish_step().request_ids == [1, 2]

    def test_an_idle_engine_loads_in_a_step_of_its_own(self) -> None:
        replica = Replica(self.PROFILE)
        replica.load_adapter("a")
        assert replica.begin_step() == pytest.approx(3.01)
        assert replica.finish_step().request_ids == []
        assert replica.begin_step() is None
        assert self.once(replica, 1, "a") == pytest.approx(self.STEP)

    def test_what_is_asked_for_while_a_step_runs_is_loaded_in_the_next(self) -> None:
        replica = Replica(self.PROFILE)
        replica.submit(request(1, 100, 2))
        replica.begin_step()
        replica.load_adapter("a")
        replica.finish_step()
        assert replica.begin_step() == pytest.approx(0.041 + 101 * 0.5e-6 + 3.01)


class TestTiming:
    def test_a_prompt_takes_its_admission_and_its_uncached_tokens(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 430, 2))
        assert replica.begin_step() == pytest.approx(0.041 + 430 * 0.5e-6 + 0.010 + 0.1)

    def test_cached_tokens_take_no_time_but_their_context(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 402, 1, shared=25))
        drain(replica)
        replica.submit(request(2, 402, 1, shared=25))
        assert replica.begin_step() == pytest.approx(0.041 + 402 * 0.5e-6 + 0.010 + 2 / 4_300)

    def test_a_further_token_takes_its_context(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 1_000, 2))
        step(replica)
        assert replica.begin_step() == pytest.approx(0.041 + 1_001 * 0.5e-6)

    def test_a_prompt_in_chunks_is_admitted_once(self) -> None:
        replica = Replica(replace(L4, max_num_batched_tokens=1_000, max_num_seqs=32))
        replica.submit(request(1, 1_500, 1))
        first = replica.begin_step()
        replica.finish_step()
        assert first == pytest.approx(0.041 + 1_000 * 0.5e-6 + 0.010 + 1_000 / 4_300)
        assert replica.begin_step() == pytest.approx(0.041 + 1_500 * 0.5e-6 + 500 / 4_300)


@dataclass(frozen=True)
class Planned:
    """A request of the property tests and what becomes of it."""

    prompt: int
    output: int
    shared: int
    at_step: int
    abort_after: int | None
    """Steps after its submission; None: never."""

    in_step: bool
    """Whether it is aborted while a step runs, or between two."""

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
)
PROFILES_WITH_LORA = st.builds(replace, PROFILES, max_loras=st.integers(1, 3))


def check(replica: Replica) -> None:
    cache = replica.cache
    assert 0 <= cache.used <= cache.capacity
    assert cache.used + cache.free == cache.capacity
    assert 0.0 <= replica.kv_usage <= 1.0
    assert replica.running <= replica.profile.max_num_seqs
    assert len(replica.running_adapters) <= replica.profile.max_loras


def check_labels(replica: Replica) -> None:
    """What the gauge of adapters lists has requests, and only that."""
    gauge = LoraGauge(replica, told_apart=True)
    gauge.stamp(1.0)
    (labels,) = gauge.series
    running, waiting = (set(filter(None, names.split(","))) for names in labels)
    assert running == {name for name, n in replica.running_adapters.items() if n}
    assert waiting == {name for name, n in replica.waiting_adapters.items() if n}
    assert replica.running_adapters.total() <= replica.running
    assert replica.waiting_adapters.total() <= replica.waiting
    assert set(replica.answering_adapters) <= running | waiting


def play(profile: Profile, plans: list[Planned]) -> tuple[Replica, list[TokenEvent], set[int]]:
    """Everything at its step; the events, and who was aborted before it was over."""
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
        check(replica)
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
        check(replica)
    else:
        raise AssertionError("the replica does not come to an end")
    return replica, events, aborted


@settings(deadline=None)
@given(PROFILES, PLANS)
def test_every_request_has_all_its_tokens_or_was_aborted(
    profile: Profile, plans: list[Planned]
) -> None:
    everybody_is_served(profile, plans)


@settings(deadline=None)
@given(PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS)
def test_so_it_is_with_adapters(profile: Profile, plans: list[Planned]) -> None:
    everybody_is_served(profile, plans)


def everybody_is_served(profile: Profile, plans: list[Planned]) -> None:
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
def test_hits_leave_the_last_token_to_be_computed(profile: Profile, plans: list[Planned]) -> None:
    _, events, _ = play(profile, plans)
    for event in events:
        most = (plans[event.request_id].prompt - 1) // BLOCK * BLOCK
        assert 0 <= event.cached_tokens <= most
        assert event.cached_tokens % BLOCK == 0


@settings(deadline=None)
@given(PROFILES, PLANS)
def test_first_tokens_come_in_the_order_of_arrival(profile: Profile, plans: list[Planned]) -> None:
    _, events, _ = play(profile, plans)
    arrivals = [(plans[e.request_id].at_step, e.request_id) for e in events if e.first]
    assert arrivals == sorted(arrivals)


@settings(deadline=None)
@given(PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS)
def test_first_tokens_of_an_adapter_come_in_the_order_of_arrival(
    profile: Profile, plans: list[Planned]
) -> None:
    _, events, _ = play(profile, plans)
    for adapter in {plan.adapter for plan in plans}:
        firsts = [e.request_id for e in events if e.first]
        arrivals = [(plans[n].at_step, n) for n in firsts if plans[n].adapter == adapter]
        assert arrivals == sorted(arrivals)


@settings(deadline=None)
@given(PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS)
def test_the_same_story_is_told_the_same_way_again(profile: Profile, plans: list[Planned]) -> None:
    assert play(profile, plans)[1] == play(profile, plans)[1]


@settings(deadline=None)
@given(PROFILES | PROFILES_WITH_LORA, PLANS_WITH_ADAPTERS, st.sampled_from([1, 2, 3, 16]))
def test_it_does_what_the_plain_engine_does(
    profile: Profile, plans: list[Planned], block_size: int
) -> None:
    profile = replace(profile, block_size=block_size)
    fast, plain = Replica(profile), PlainReplica(profile)
    cached: dict[int, int] = {}
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
            assert finish(fast, cached) == plain.finish_step()
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
    """Like `request`, for any size of blocks; without LoRA all are of the base model."""
    adapter = plan.adapter if profile.max_loras else ""
    shared = plan.shared * BLOCK // profile.block_size
    full = (plan.prompt + plan.output) // profile.block_size
    blocks = [("shared", adapter, i) if i < shared else (number, i) for i in range(full)]
    return SimRequest(number, plan.prompt, plan.output, blocks, adapter)
