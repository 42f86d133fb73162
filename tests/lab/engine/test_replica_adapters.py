"""LoRA adapters in the model of one engine: batches and loading times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab.engine.replica import Replica
from tests.lab.engine.replicas import BLOCK, L4, drain, request, step


class TestAdapters:
    """A batch has at most `max_loras` adapters; later requests may overtake one that must wait."""

    def lora(self, max_loras: int) -> Replica:
        return Replica(replace(L4, max_loras=max_loras))

    def submit_each(self, replica: Replica, *adapters: str) -> None:
        """Submit a request for each adapter, numbered from 1."""
        for number, adapter in enumerate(adapters, 1):
            replica.submit(request(number, 100, 5, adapter=adapter))

    def test_mixes_adapters_and_the_base_model_in_a_batch(self) -> None:
        replica = self.lora(2)
        self.submit_each(replica, "a", "", "b", "a")
        assert [event.request_id for event in step(replica)] == [1, 2, 3, 4]

    def test_lets_later_requests_overtake_one_adapter_too_many(self) -> None:
        replica = self.lora(2)
        self.submit_each(replica, "a", "b", "c", "", "b", "d")
        assert [event.request_id for event in step(replica)] == [1, 2, 4, 5]
        assert replica.running_adapters == {"a": 1, "b": 2}
        assert replica.waiting_adapters == {"c": 1, "d": 1}

    def test_keeps_the_queue_position_of_an_overtaken_request(self) -> None:
        replica = self.lora(1)
        self.submit_each(replica, "a", "b", "c", "b", "c")
        firsts = [event.request_id for event in drain(replica) if event.first]
        assert firsts == [1, 2, 4, 3, 5]

    def test_admits_an_adapter_once_another_is_unused(self) -> None:
        replica = self.lora(2)
        replica.submit(request(1, 100, 2, adapter="a"))
        replica.submit(request(2, 100, 9, adapter="b"))
        replica.submit(request(3, 100, 9, adapter="c"))
        assert [event.request_id for event in step(replica)] == [1, 2]
        assert [event.request_id for event in step(replica)] == [1, 2]
        assert [event.request_id for event in step(replica)] == [2, 3]

    def test_reuses_the_slot_of_an_unused_adapter(self) -> None:
        replica = self.lora(1)
        replica.submit(request(1, 100, 1, adapter="a"))
        drain(replica)
        assert replica.loras.in_slots == ["a"]
        replica.submit(request(2, 100, 1, adapter="b"))
        assert [event.request_id for event in step(replica)] == [2]

    def test_no_request_overtakes_one_that_waits_for_blocks(self) -> None:
        replica = Replica(replace(L4, kv_tokens=20 * BLOCK, max_loras=1))
        replica.submit(request(1, 160, 20, adapter="a"))
        step(replica)
        replica.submit(request(2, 100, 2, adapter="b"))
        replica.submit(request(3, 300, 2, adapter="a"))
        replica.submit(request(4, 10, 2, adapter="a"))
        step(replica)
        assert (replica.running, replica.waiting) == (1, 3)

    def test_preempts_the_request_admitted_last_not_the_one_submitted_last(self) -> None:
        replica = Replica(replace(L4, kv_tokens=13 * BLOCK, max_loras=1))
        replica.submit(request(1, 70, 4, adapter="a"))
        replica.submit(request(2, 90, 30, adapter="b"))
        replica.submit(request(3, 80, 60))
        finished = [event.request_id for event in drain(replica) if event.finished]
        # The third request overtakes the second, which is preempted for it later.
        assert (finished, replica.preemptions) == ([1, 3, 2], 1)

    def test_abort_frees_the_place_of_an_adapter(self) -> None:
        replica = self.lora(1)
        self.submit_each(replica, "a", "b")
        step(replica)
        replica.abort(1)
        assert [event.request_id for event in step(replica)] == [2]

    def test_answering_adapters_need_a_first_token(self) -> None:
        replica = Replica(replace(L4, max_loras=2, max_num_batched_tokens=100, max_num_seqs=32))
        replica.submit(request(1, 150, 3, adapter="a"))
        step(replica)
        assert (replica.running_adapters, replica.answering_adapters) == ({"a": 1}, {})
        step(replica)
        assert replica.answering_adapters == {"a": 1}

    def test_refuses_an_adapter_without_lora(self) -> None:
        with pytest.raises(ValueError, match="LoRA is off"):
            Replica(L4).submit(request(1, 100, 2, adapter="a"))

    def test_caches_each_adapter_separately(self) -> None:
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

    def test_adds_the_loading_time_to_the_first_step_with_an_adapter(self) -> None:
        replica = Replica(self.PROFILE)
        assert self.once(replica, 1, "a") == pytest.approx(self.STEP + 3.0 + 0.01)
        assert self.once(replica, 2, "a") == pytest.approx(self.STEP)

    def test_copies_an_adapter_from_host_memory(self) -> None:
        replica = Replica(self.PROFILE)
        self.once(replica, 1, "a")
        self.once(replica, 2, "b")
        assert self.once(replica, 3, "a") == pytest.approx(self.STEP + 0.01)

    def test_delays_the_whole_batch_by_loading(self) -> None:
        replica = Replica(self.PROFILE)
        replica.submit(request(1, 100, 9))
        step(replica)
        replica.submit(request(2, 100, 1, adapter="a"))
        seconds = replica.begin_step()
        assert seconds is not None
        assert seconds > 3.0
        assert replica.finish_step().request_ids == [1, 2]

    def test_loads_an_adapter_in_a_step_without_requests(self) -> None:
        replica = Replica(self.PROFILE)
        replica.load_adapter("a")
        assert replica.begin_step() == pytest.approx(3.01)
        assert replica.finish_step().request_ids == []
        assert replica.begin_step() is None
        assert self.once(replica, 1, "a") == pytest.approx(self.STEP)

    def test_loads_an_adapter_in_the_step_after_the_request(self) -> None:
        replica = Replica(self.PROFILE)
        replica.submit(request(1, 100, 2))
        replica.begin_step()
        replica.load_adapter("a")
        replica.finish_step()
        assert replica.begin_step() == pytest.approx(0.041 + 101 * 0.5e-6 + 3.01)
