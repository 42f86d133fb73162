"""Where an engine's adapters are: what it costs to bring one in, and who makes room for it."""

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


class TestCost:
    def test_a_batch_without_adapters_takes_nothing(self) -> None:
        assert lora(slots=2).use([]) == 0

    def test_the_first_use_reads_it_from_disk(self) -> None:
        assert lora(slots=2).use(["a"]) == FROM_DISK

    def test_what_is_in_a_slot_takes_nothing(self) -> None:
        loras = lora(slots=2)
        loras.use(["a"])
        assert loras.use(["a"]) == 0

    def test_what_is_in_host_memory_is_only_copied(self) -> None:
        loras = lora(slots=1, host=2)
        loras.use(["a"])
        loras.use(["b"])
        assert loras.use(["a"]) == ACTIVATE

    def test_each_of_a_batch_takes_its_time(self) -> None:
        loras = lora(slots=3)
        loras.use(["a"])
        assert loras.use(["a", "b", "c"]) == 2 * FROM_DISK


class TestRoom:
    def test_the_least_recently_used_leaves_its_slot(self) -> None:
        loras = lora(slots=2, host=4)
        for adapter in ("a", "b", "a", "c"):
            loras.use([adapter])
        assert loras.in_slots == ["a", "c"]
        assert loras.in_host_memory == ["b", "a", "c"]

    def test_what_the_batch_uses_is_never_pushed_out_for_it(self) -> None:
        loras = lora(slots=2)
        loras.use(["old"])
        loras.use(["young"])
        assert loras.use(["new", "old"]) == FROM_DISK
        assert set(loras.in_slots) == {"new", "old"}

    def test_what_leaves_host_memory_leaves_its_slot(self) -> None:
        loras = lora(slots=2)
        loras.use(["a"])
        loras.use(["b"])
        loras.use(["c"])
        assert loras.in_slots == loras.in_host_memory == ["b", "c"]
        assert loras.use(["a"]) == FROM_DISK

    def test_without_further_room_in_host_memory_it_holds_the_slots(self) -> None:
        loras = lora(slots=2)
        for adapter in "abcd":
            loras.use([adapter])
        assert loras.in_host_memory == ["c", "d"]

    def test_host_memory_holds_what_is_in_slots_too(self) -> None:
        with pytest.raises(ValueError, match=r"max_cpu_loras \(1\) must be at least"):
            lora(slots=2, host=1)


class TestLoading:
    def test_what_was_loaded_is_ready(self) -> None:
        loras = lora(slots=2)
        assert loras.load("a") == FROM_DISK
        assert loras.use(["a"]) == 0

    def test_it_is_read_again_although_it_is_there(self) -> None:
        loras = lora(slots=2)
        loras.load("a")
        assert loras.load("a") == FROM_DISK
        assert loras.in_slots == loras.in_host_memory == ["a"]

    def test_in_place_it_pushes_nobody_out(self) -> None:
        loras = lora(slots=2)
        loras.use(["a", "b"])
        loras.load("b")
        assert loras.in_slots == ["a", "b"]

    def test_it_may_push_out_what_the_batch_uses(self) -> None:
        loras = lora(slots=1, host=2)
        loras.use(["a"])
        loras.load("b")
        assert loras.use(["a"]) == ACTIVATE

    def test_without_slots_there_is_nothing_to_load_for(self) -> None:
        with pytest.raises(ValueError, match="LoRA is off"):
            lora(slots=0).load("a")


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from("abcdef"), min_size=1))),
)
def test_places_are_never_overbooked(
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
