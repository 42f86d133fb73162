"""The model of one engine: its schedule, its cache and its timing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from extproc.lab.engine.replica import Replica, SimRequest, StepTokens
from tests.lab.engine.replicas import L4, TokenEvent, drain, request, small, step


class TestGenerating:
    def test_has_no_step_if_idle(self) -> None:
        assert Replica(L4).begin_step() is None

    def test_generates_one_token_per_step(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 3))
        assert step(replica) == [TokenEvent(1, first=True, finished=False, cached_tokens=0)]
        assert step(replica) == [TokenEvent(1, first=False, finished=False, cached_tokens=0)]
        assert step(replica) == [TokenEvent(1, first=False, finished=True, cached_tokens=0)]
        assert replica.begin_step() is None

    def test_marks_a_single_token_as_first_and_last(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 1))
        assert step(replica) == [TokenEvent(1, first=True, finished=True, cached_tokens=0)]

    def test_counts_running_and_waiting_requests(self) -> None:
        replica = Replica(replace(L4, max_num_seqs=2))
        for number in range(3):
            replica.submit(request(number, 100, 5))
        assert (replica.running, replica.waiting) == (0, 3)
        step(replica)
        assert (replica.running, replica.waiting) == (2, 1)
        drain(replica)
        assert (replica.running, replica.waiting) == (0, 0)

    def test_admits_a_request_after_the_step_in_which_it_arrives(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.begin_step()
        replica.submit(request(2, 100, 5))
        assert replica.finish_step().request_ids == [1]
        assert [event.request_id for event in step(replica)] == [1, 2]

    def test_counts_tokens(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.submit(request(2, 50, 3))
        drain(replica)
        assert (replica.prompt_tokens_total, replica.generation_tokens_total) == (150, 8)

    def test_counts_steps_and_the_times_between_tokens(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 4))
        replica.submit(request(2, 50, 3))
        while replica.begin_step() is not None:
            replica.took(0.5, replica.finish_step())
        assert (replica.steps_total, replica.computed_tokens_total) == (4, 150)
        assert (replica.inter_token_times_total, replica.inter_token_seconds_total) == (5, 2.5)

    def test_counts_the_prompts_of_finished_requests(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 3))
        replica.took(0.5, self.next_step(replica))
        replica.submit(request(2, 100, 9))
        replica.took(0.5, self.next_step(replica))
        assert replica.prefills.prompts == 0
        replica.took(0.5, self.next_step(replica))
        prefills = replica.prefills
        assert (prefills.prompts, prefills.seconds, prefills.tokens) == (1, 0.5, 100)
        replica.abort(2)
        assert replica.prefills.prompts == 1

    def test_counts_the_time_of_a_prompt_from_its_first_step_to_its_first_token(self) -> None:
        replica = Replica(replace(L4, max_num_batched_tokens=256))
        replica.submit(request(1, 700, 1))
        while replica.begin_step() is not None:
            replica.took(0.5, replica.finish_step())
        assert (replica.prefills.seconds, replica.prefills.tokens) == (1.5, 700)

    def test_counts_only_the_tokens_of_a_prompt_that_the_cache_did_not_have(self) -> None:
        replica = Replica(L4)
        for number in (1, 2):
            replica.submit(request(number, 100, 1, shared=6))
            replica.took(0.5, self.next_step(replica))
        assert (replica.prefills.prompts, replica.prefills.tokens) == (2, 104)

    @staticmethod
    def next_step(replica: Replica) -> StepTokens:
        replica.begin_step()
        return replica.finish_step()

    def test_refuses_to_begin_a_second_step(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.begin_step()
        with pytest.raises(RuntimeError):
            replica.begin_step()

    def test_refuses_to_finish_a_step_that_was_not_begun(self) -> None:
        with pytest.raises(RuntimeError):
            Replica(L4).finish_step()


class TestSubmit:
    @pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (-1, 1)])
    def test_refuses_a_request_without_prompt_or_output(self, prompt: int, output: int) -> None:
        with pytest.raises(ValueError, match="at least one prompt token"):
            Replica(L4).submit(SimRequest(1, prompt, output, []))

    def test_refuses_a_request_larger_than_the_cache(self) -> None:
        replica = small(blocks=4)
        with pytest.raises(ValueError, match="65 tokens, but the whole cache holds 64"):
            replica.submit(request(1, 60, 5))
        replica.submit(request(2, 60, 4))
        assert len(drain(replica)) == 4

    def test_refuses_a_wrong_number_of_block_ids(self) -> None:
        with pytest.raises(ValueError, match="3 ids"):
            Replica(L4).submit(SimRequest(1, 30, 2, [1, 2, 3]))

    def test_refuses_an_id_that_is_in_use(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 2))
        with pytest.raises(ValueError, match="already in the engine"):
            replica.submit(request(1, 100, 2))
        drain(replica)
        replica.submit(request(1, 100, 2))


class TestCaching:
    def cached(self, replica: Replica, wanted: SimRequest) -> int:
        replica.submit(wanted)
        return drain(replica)[0].cached_tokens

    def test_finds_a_known_prompt_except_its_last_token(self) -> None:
        replica = Replica(L4)
        assert self.cached(replica, request(1, 402, 5, shared=25)) == 0
        assert self.cached(replica, request(2, 402, 5, shared=25)) == 400
        assert self.cached(replica, request(3, 400, 5, shared=25)) == 384

    def test_finds_generated_tokens_in_the_next_turn(self) -> None:
        replica = Replica(L4)
        assert self.cached(replica, request(1, 100, 60, shared=10)) == 0
        # Of 160 known tokens the last was never computed, because no token followed it.
        assert self.cached(replica, request(2, 200, 10, shared=10)) == 144

    def test_shares_a_prefix_within_a_step(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 402, 1, shared=25))
        replica.submit(request(2, 402, 1, shared=25))
        assert [event.cached_tokens for event in step(replica)] == [0, 400]

    def test_counts_hits_and_queries_in_tokens(self) -> None:
        replica = Replica(L4)
        for number in range(3):
            self.cached(replica, request(number, 402, 5, shared=25))
        assert (replica.prefix_cache_queries, replica.prefix_cache_hits) == (1206, 800)

    def test_evicts_a_prefix_for_a_later_request(self) -> None:
        replica = small(blocks=30)
        self.cached(replica, request(1, 320, 5, shared=20))
        self.cached(replica, request(2, 440, 5))
        assert self.cached(replica, request(3, 320, 5, shared=20)) < 160

    def test_reports_the_usage_of_running_requests(self) -> None:
        replica = small(blocks=40)
        replica.submit(request(1, 300, 5))
        step(replica)
        assert replica.kv_usage == pytest.approx(19 / 40)
        drain(replica)
        assert replica.kv_usage == 0.0

    def test_reset_empties_the_cache_and_the_counters(self) -> None:
        replica = Replica(L4)
        self.cached(replica, request(1, 402, 5, shared=25))
        replica.reset()
        assert replica.prompt_tokens_total == replica.prefix_cache_queries == 0
        assert self.cached(replica, request(2, 402, 5, shared=25)) == 0


class TestScheduling:
    def test_computes_a_long_prompt_in_chunks(self) -> None:
        replica = Replica(replace(L4, max_num_batched_tokens=100, max_num_seqs=32))
        replica.submit(request(1, 250, 2))
        assert [len(step(replica)) for _ in range(4)] == [0, 0, 1, 1]

    def test_continues_running_requests_before_new_prompts(self) -> None:
        replica = Replica(replace(L4, max_num_batched_tokens=100, max_num_seqs=32))
        replica.submit(request(1, 100, 9))
        step(replica)
        replica.submit(request(2, 100, 9))
        assert [event.request_id for event in step(replica)] == [1]
        assert [event.request_id for event in step(replica)] == [1, 2]

    def test_no_request_overtakes_one_that_waits_for_blocks(self) -> None:
        replica = small(blocks=20)
        replica.submit(request(1, 160, 20))
        step(replica)
        replica.submit(request(2, 300, 2))
        replica.submit(request(3, 10, 2))
        step(replica)
        assert (replica.running, replica.waiting) == (1, 2)
        firsts = [event.request_id for event in drain(replica) if event.first]
        assert firsts == [2, 3]


class TestPreemption:
    def under_pressure(self) -> Replica:
        """Return a replica with two requests that fit until one of them needs another block."""
        replica = small(blocks=10)
        replica.submit(request(1, 80, 40))
        replica.submit(request(2, 80, 40))
        return replica

    def test_preempts_the_latest_request(self) -> None:
        replica = self.under_pressure()
        step(replica)
        assert [event.request_id for event in step(replica)] == [1]
        assert (replica.running, replica.waiting, replica.preemptions) == (1, 1, 1)

    def test_finishes_every_request(self) -> None:
        replica = self.under_pressure()
        events = Counter(event.request_id for event in drain(replica))
        assert events == {1: 40, 2: 40}
        assert replica.generation_tokens_total == 80

    def test_gives_each_request_one_first_token(self) -> None:
        events = drain(self.under_pressure())
        assert [event.request_id for event in events if event.first] == [1, 2]

    def test_counts_the_queries_of_a_request_once(self) -> None:
        replica = self.under_pressure()
        drain(replica)
        assert (replica.prefix_cache_queries, replica.prompt_tokens_total) == (160, 160)

    def test_resumes_a_preempted_request_before_later_ones(self) -> None:
        replica = self.under_pressure()
        step(replica)
        replica.submit(request(3, 16, 1))
        events = drain(replica)
        assert replica.preemptions == 1
        second = next(i for i, e in enumerate(events) if e.request_id == 2)
        third = next(i for i, e in enumerate(events) if e.request_id == 3)
        assert second < third

    def test_takes_time_to_compute_lost_tokens_again(self) -> None:
        replica = self.under_pressure()
        replica.submit(request(3, 16, 1))
        seconds = []
        while (planned := replica.begin_step()) is not None:
            seconds.append((replica.preemptions, planned))
            replica.finish_step()
        after = [planned for preemptions, planned in seconds if preemptions]
        assert max(after) > L4.step_base_seconds + L4.admission_seconds


class TestAbort:
    def test_ignores_an_unknown_request(self) -> None:
        replica = Replica(L4)
        replica.abort(7)
        assert replica.begin_step() is None

    def test_removes_a_waiting_request(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.abort(1)
        replica.abort(1)
        assert (replica.waiting, replica.begin_step()) == (0, None)

    def test_releases_the_blocks_of_a_running_request(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        step(replica)
        replica.abort(1)
        assert (replica.running, replica.kv_usage) == (0, 0.0)

    def test_removes_a_request_during_its_step(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.submit(request(2, 100, 5))
        replica.begin_step()
        replica.abort(1)
        assert replica.finish_step().request_ids == [2]

    def test_allows_the_same_id_again_during_the_step(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 5))
        replica.begin_step()
        replica.abort(1)
        replica.submit(request(1, 100, 2))
        assert replica.finish_step().request_ids == []
        assert len(drain(replica)) == 2

    def test_removes_a_preempted_request(self) -> None:
        replica = small(blocks=10)
        replica.submit(request(1, 80, 40))
        replica.submit(request(2, 80, 40))
        step(replica)
        step(replica)
        assert replica.preemptions == 1
        replica.abort(2)
        assert {event.request_id for event in drain(replica)} == {1}

    def test_ignores_a_finished_request(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 100, 2))
        drain(replica)
        replica.abort(1)
        assert replica.generation_tokens_total == 2


class TestTiming:
    def test_a_prompt_takes_admission_and_prefill_time(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 430, 2))
        assert replica.begin_step() == pytest.approx(0.041 + 430 * 0.5e-6 + 0.010 + 0.1)

    def test_cached_tokens_only_take_context_time(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 402, 1, shared=25))
        drain(replica)
        replica.submit(request(2, 402, 1, shared=25))
        assert replica.begin_step() == pytest.approx(0.041 + 402 * 0.5e-6 + 0.010 + 2 / 4_300)

    def test_a_decoded_token_takes_context_time(self) -> None:
        replica = Replica(L4)
        replica.submit(request(1, 1_000, 2))
        step(replica)
        assert replica.begin_step() == pytest.approx(0.041 + 1_001 * 0.5e-6)

    def test_a_chunked_prompt_takes_admission_time_once(self) -> None:
        replica = Replica(replace(L4, max_num_batched_tokens=1_000, max_num_seqs=32))
        replica.submit(request(1, 1_500, 1))
        first = replica.begin_step()
        replica.finish_step()
        assert first == pytest.approx(0.041 + 1_000 * 0.5e-6 + 0.010 + 1_000 / 4_300)
        assert replica.begin_step() == pytest.approx(0.041 + 1_500 * 0.5e-6 + 500 / 4_300)
