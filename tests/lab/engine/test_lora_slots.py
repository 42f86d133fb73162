"""The adapter slots of an engine: loading times and evictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.lab.engine.lora_slots import LoraSlots
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8

LOAD, ACTIVATE = 0.5, 0.01
FROM_DISK = LOAD + ACTIVATE


def lora(slots: int, host: int = 0) -> LoraSlots:
    profile = replace(
        L4_LLAMA_3_1_8B_FP8,
        max_loras=slots,
        max_cpu_loras=host,
        lora_load_seconds=LOAD,
        lora_activate_seconds=ACTIVATE,
    )
    return LoraSlots(profile)


class TestSeconds:
    def test_batch_without_adapters_takes_no_time(self) -> None:
        assert lora(slots=2).use([]) == 0

    def test_first_use_reads_from_disk(self) -> None:
        assert lora(slots=2).use(["a"]) == FROM_DISK

    def test_adapter_in_a_slot_takes_no_time(self) -> None:
        loras = lora(slots=2)
        loras.use(["a"])
        assert loras.use(["a"]) == 0

    def test_adapter_in_host_memory_is_copied(self) -> None:
        loras = lora(slots=1, host=2)
        loras.use(["a"])
        loras.use(["b"])
        assert loras.use(["a"]) == ACTIVATE

    def test_times_of_a_batch_add_up(self) -> None:
        loras = lora(slots=3)
        loras.use(["a"])
        assert loras.use(["a", "b", "c"]) == 2 * FROM_DISK


class TestCapacity:
    def test_least_recently_used_adapter_leaves_its_slot(self) -> None:
        loras = lora(slots=2, host=4)
        for adapter in ("a", "b", "a", "c"):
            loras.use([adapter])
        assert loras.in_slots == ["a", "c"]
        assert loras.in_host_memory == ["b", "a", "c"]

    def test_adapters_of_the_batch_stay_in_their_slots(self) -> None:
        loras = lora(slots=2)
        loras.use(["old"])
        loras.use(["young"])
        assert loras.use(["new", "old"]) == FROM_DISK
        assert set(loras.in_slots) == {"new", "old"}

    def test_adapter_that_leaves_host_memory_leaves_its_slot(self) -> None:
        loras = lora(slots=2)
        loras.use(["a"])
        loras.use(["b"])
        loras.use(["c"])
        assert loras.in_slots == loras.in_host_memory == ["b", "c"]
        assert loras.use(["a"]) == FROM_DISK

    def test_host_memory_defaults_to_the_slots(self) -> None:
        loras = lora(slots=2)
        for adapter in "abcd":
            loras.use([adapter])
        assert loras.in_host_memory == ["c", "d"]

    def test_host_memory_includes_the_slots(self) -> None:
        with pytest.raises(ValueError, match=r"max_cpu_loras \(1\) must be at least"):
            lora(slots=2, host=1)


class TestLoad:
    def test_loaded_adapter_takes_no_time(self) -> None:
        loras = lora(slots=2)
        assert loras.load("a") == FROM_DISK
        assert loras.use(["a"]) == 0

    def test_reads_a_loaded_adapter_again(self) -> None:
        loras = lora(slots=2)
        loras.load("a")
        assert loras.load("a") == FROM_DISK
        assert loras.in_slots == loras.in_host_memory == ["a"]

    def test_reload_evicts_no_other_adapter(self) -> None:
        loras = lora(slots=2)
        loras.use(["a", "b"])
        loras.load("b")
        assert loras.in_slots == ["a", "b"]

    def test_may_evict_an_adapter_of_the_batch(self) -> None:
        loras = lora(slots=1, host=2)
        loras.use(["a"])
        loras.load("b")
        assert loras.use(["a"]) == ACTIVATE

    def test_refuses_to_load_without_slots(self) -> None:
        with pytest.raises(ValueError, match="LoRA is off"):
            lora(slots=0).load("a")


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from("abcdef"), min_size=1))),
)
def test_limits_are_never_exceeded(
    slots: int, spare: int, story: list[tuple[bool, set[str]]]
) -> None:
    loras = lora(slots, slots + spare)
    for load, names in story:
        batch = sorted(names)[:slots]
        host, ready = set(loras.in_host_memory), set(loras.in_slots)
        if load:
            assert loras.load(batch[0]) == FROM_DISK
            continue
        taken = loras.use(batch)
        fetched, read = len(set(batch) - ready), len(set(batch) - host)
        assert taken == pytest.approx(fetched * ACTIVATE + read * LOAD)
        assert set(batch) <= set(loras.in_slots) <= set(loras.in_host_memory)
        assert len(loras.in_slots) <= slots
        assert len(loras.in_host_memory) <= slots + spare
