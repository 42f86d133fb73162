from __future__ import annotations

import tracemalloc
from collections import Counter
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.ring import STEP, Ring
from tests.core.builders import brief, thorough

POD_A_1 = 689047897566398072
POD_A_2 = 8996271527020827053
DEFAULT_POD_0 = 3256742177138097696

LAST_KEY = 2**64 - 1

keys = st.integers(0, LAST_KEY)
# Few letters, so that names such as `x-1` + `10` and `x-11` + `0` often collide.
names = st.one_of(st.from_regex(r"x-1{1,4}0?", fullmatch=True), st.text(max_size=5))
members = st.lists(names, unique=True, min_size=1, max_size=12)


def ring_of(*names: str, replication: int = 16) -> Ring[str]:
    return Ring.of({name: name for name in names}, replication)


def place(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode())


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("pod-a-10", POD_A_1), ("pod-a-20", POD_A_2), ("default/pod-00", DEFAULT_POD_0)],
)
def test_node_is_the_xxh64_of_name_and_number(text: str, hashed: int) -> None:
    # The other member shows where this member's only node ends.
    other = "before" if place("before0") < hashed else "after"
    ring = ring_of(text.removesuffix("0"), other, replication=1)
    assert place(text) == hashed
    assert next(ring.walk(hashed)) == text.removesuffix("0")
    assert next(ring.walk((hashed + 1) % 2**64)) == other


def test_walk_starts_at_the_first_node_at_or_after_the_key() -> None:
    ring = ring_of("pod-a-1", "pod-a-2", replication=1)
    assert list(ring.walk(0)) == ["pod-a-1", "pod-a-2"]
    assert list(ring.walk(POD_A_1)) == ["pod-a-1", "pod-a-2"]
    assert list(ring.walk(POD_A_1 + 1)) == ["pod-a-2", "pod-a-1"]
    assert list(ring.walk(POD_A_2)) == ["pod-a-2", "pod-a-1"]


def test_walk_wraps_around() -> None:
    ring = ring_of("pod-a-1", "pod-a-2", replication=1)
    assert list(ring.walk(POD_A_2 + 1)) == ["pod-a-1", "pod-a-2"]
    assert list(ring.walk(LAST_KEY)) == ["pod-a-1", "pod-a-2"]


@given(names=members, key=keys, replication=st.sampled_from([1, 16]), data=st.data())
def test_members_among_some_names_have_the_order_of_the_walk(
    names: list[str], key: int, replication: int, data: st.DataObject
) -> None:
    ring = ring_of(*names, replication=replication)
    some = data.draw(st.sets(st.sampled_from(names)))
    assert list(ring.among(key, some)) == [name for name in ring.walk(key) if name in some]


def test_walk_of_an_empty_ring_is_empty() -> None:
    ring = ring_of()
    assert len(ring) == 0
    assert list(ring.walk(0)) == []
    assert list(ring.walk(LAST_KEY)) == []


def test_each_member_has_replication_nodes() -> None:
    assert len(ring_of("a", "b", "c", replication=7)) == 21


@thorough
@given(members, st.integers(1, 40), keys, st.randoms(use_true_random=False))
def test_ring_does_not_depend_on_the_order_of_members(
    names: list[str], replication: int, key: int, random: Random
) -> None:
    shuffled = names.copy()
    random.shuffle(shuffled)
    walk = list(ring_of(*names, replication=replication).walk(key))
    assert list(ring_of(*shuffled, replication=replication).walk(key)) == walk


@thorough
@given(members, st.integers(1, 40), keys)
def test_walk_yields_every_member_once(names: list[str], replication: int, key: int) -> None:
    assert sorted(ring_of(*names, replication=replication).walk(key)) == sorted(names)


@thorough
@given(members, names, st.integers(1, 40), st.lists(keys, min_size=1))
def test_new_member_moves_no_keys_between_others(
    names: list[str], new: str, replication: int, keys: list[int]
) -> None:
    before = ring_of(*names, replication=replication)
    after = ring_of(*{*names, new}, replication=replication)
    for key in keys:
        assert next(after.walk(key)) in (next(before.walk(key)), new)


@brief
@given(members, st.integers(1, 40), st.lists(keys, min_size=1))
def test_walk_without_a_member_keeps_the_order_of_others(
    names: list[str], replication: int, keys: list[int]
) -> None:
    gone, *others = names
    before = ring_of(*names, replication=replication)
    after = ring_of(*others, replication=replication)
    for key in keys:
        assert list(after.walk(key)) == [name for name in before.walk(key) if name != gone]


class TestEqualNodes:
    shared = place("x-110")

    def test_stay_both(self) -> None:
        ring = ring_of("x-1", "x-11", replication=11)
        assert len(ring) == 22
        assert list(ring.walk(self.shared)) == ["x-1", "x-11"]

    def test_are_ordered_by_member_name(self) -> None:
        ring = ring_of("x-11", "x-1", "x-2", replication=11)
        assert list(ring.walk(self.shared))[:2] == ["x-1", "x-11"]

    @pytest.mark.parametrize("stays", ["x-1", "x-11"])
    def test_lose_only_the_member_that_leaves(self, stays: str) -> None:
        # The third member shows whether the node still exists.
        others = [f"y-{i}" for i in range(50)]
        ring = ring_of(stays, *others, replication=11)
        assert next(ring.walk(self.shared)) == stays
        assert sorted(ring.walk(self.shared)) == sorted([stays, *others])


def shares(*names: str) -> list[float]:
    """Return each member's share of 20,000 keys, relative to the mean."""
    ring = ring_of(*names, replication=256)
    counts = Counter(next(ring.walk(place(f"key {i}"))) for i in range(20_000))
    return [counts[name] * len(names) / 20_000 for name in names]


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_256_nodes_each_share_the_ring_evenly(count: int) -> None:
    parts = shares(*(f"default/pod-{i:02}" for i in range(count)))
    assert min(parts) > 0.75
    assert max(parts) < 1.25


def test_numbered_members_have_at_least_half_the_mean() -> None:
    # `pod-1` and `pod-11` have many equal nodes.
    parts = shares(*(f"default/pod-{i}" for i in range(32)))
    assert min(parts) > 0.5
    assert max(parts) < 1.5


@brief
@given(members, members, st.sampled_from([1, 16]), st.sampled_from([1, 16]), keys)
def test_ring_from_a_previous_one_equals_a_new_one(
    before: list[str], now: list[str], old_replication: int, replication: int, key: int
) -> None:
    previous = Ring.of({name: (name, "before") for name in before}, old_replication)
    wanted = {name: (name, "now") for name in now}
    ring = Ring.of(wanted, replication, previous)
    assert len(ring) == len(now) * replication
    assert list(ring.walk(key)) == list(Ring.of(wanted, replication).walk(key))


# `x-1` and `x-11` have equal nodes.
crowd = st.sets(st.sampled_from([f"x-{number}" for number in range(16)]), min_size=8)
few = st.sets(st.sampled_from([f"x-{number}" for number in range(16)]), max_size=3)


@brief
@given(crowd, st.lists(few, max_size=6), st.sampled_from([1, 11, 16]), keys)
def test_ring_after_several_small_changes_equals_a_new_one(
    names: set[str], changes: list[set[str]], replication: int, key: int
) -> None:
    ring = Ring.of({name: name for name in names}, replication)
    for changed in changes:
        names = names ^ changed
        ring = Ring.of({name: name for name in names}, replication, ring)
    new = Ring.of({name: name for name in names}, replication)
    assert len(ring) == len(new)
    assert list(ring.walk(key)) == list(new.walk(key))
    nodes = (place(f"{name}{number}") for name in names for number in range(replication))
    assert all(next(ring.walk(node)) == next(new.walk(node)) for node in nodes)


@brief
@given(crowd, crowd, crowd, st.sampled_from([1, 11, 16]), keys)
def test_ring_of_only_some_members_equals_a_new_one(
    before: set[str], now: set[str], later: set[str], replication: int, key: int
) -> None:
    whole = Ring.of({name: name for name in before}, replication)
    ring = whole.only({name: name for name in now})
    new = Ring.of({name: name for name in now & before}, replication)
    assert ring.is_whole == (before <= now)
    assert len(ring) == len(new)
    assert list(ring.nodes()) == list(new.nodes())
    assert list(ring.walk(key)) == list(new.walk(key))
    assert list(ring.among(key, now & before)) == list(new.walk(key))
    if now & before:
        assert ring.owner(key) == new.owner(key)
    assert list(ring.only({name: name for name in before}).walk(key)) == list(whole.walk(key))
    # The next ring with steps has no other nodes.
    wanted = {name: name for name in later}
    after = Ring.of(wanted, replication, ring, lambda: None)
    assert after.is_whole
    assert list(after.nodes()) == list(Ring.of(wanted, replication).nodes())


def test_ring_of_only_some_members_shares_the_nodes() -> None:
    names = [f"default/pod-{i:02}" for i in range(100)]
    previous = Ring.of({name: name for name in names}, 256)
    tracemalloc.start()
    try:
        ring = previous.only({name: name for name in names[50:]})
        same = Ring.of({name: name.upper() for name in names[50:]}, 256, ring)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * len(ring)
    assert same.owner(0) == ring.owner(0).upper()


def test_change_of_one_member_copies_the_nodes_of_the_others() -> None:
    names = [f"default/pod-{i:03}" for i in range(300)]
    previous = Ring.of({name: name for name in names}, 256)
    tracemalloc.start()
    try:
        ring = Ring.of({name: name for name in [*names[1:], "default/new"]}, 256, previous)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A node takes 12 bytes, in the ring and in a copy. A new one has a tuple and an integer, too.
    assert most < 40 * len(ring)


@pytest.mark.parametrize("changed", [0, 40, 300])
def test_large_ring_is_built_in_small_steps(changed: int) -> None:
    # Each step ends with a pause; the event loop waits for one step at most.
    names = [f"default/pod-{i:03}" for i in range(600)]
    previous = Ring.of({name: name for name in names[changed:]}, 256) if changed else None
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1

    ring = Ring.of({name: name for name in names}, 256, previous, pause)
    assert len(ring) == 600 * 256
    new = (changed or 600) * 256
    assert pauses >= new / STEP
    assert list(ring._hashes) == sorted(ring._hashes)


def test_members_of_equal_names_share_the_nodes() -> None:
    # Adapters change at run time, and hashing all members again would block the event loop.
    names = [f"default/pod-{i:02}" for i in range(100)]
    previous = Ring.of({name: (name, "before") for name in names}, 256)
    wanted = {name: (name, "now") for name in reversed(names)}
    tracemalloc.start()
    try:
        ring = Ring.of(wanted, 256, previous)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(ring), "less than a byte for each place"
    for key in (0, POD_A_1, LAST_KEY):
        assert list(ring.walk(key)) == list(Ring.of(wanted, 256).walk(key))
        assert [name for name, _ in ring.walk(key)] == [name for name, _ in previous.walk(key)]


def test_member_with_several_names_is_yielded_for_each() -> None:
    ring = Ring.of({"a": "same", "b": "same", "c": "other"}, 16)
    assert sorted(ring.walk(0)) == ["other", "same", "same"]
