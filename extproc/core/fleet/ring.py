"""The consistent-hash ring.

Each member stands on the ring `replication` times, so that members share it
evenly and one that leaves gives its share to all others in small parts
(Karger et al. 1997). Places are named as KubeAI names them: the member's name
followed by a decimal number, hashed with XXH64, seed 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

import xxhash

Member = TypeVar("Member")

_Place = tuple[int, int]
"""A hash, and the number of the member that stands there."""


@lru_cache(maxsize=4096)
def _places(name: str, replication: int) -> tuple[int, ...]:
    """Where a member stands; remembered, because rings are rebuilt when any member changes."""
    digest = xxhash.xxh64_intdigest
    return tuple(digest(f"{name}{i}".encode()) for i in range(replication))


class Ring(Generic[Member]):
    """Immutable: a change of members is a new ring.

    Two members can claim one place (`x-1` + `10` and `x-11` + `0` are one text).
    Both keep it, in the order of their names, so the ring depends on the set of
    members alone and no place is left behind when one of them goes.

    Members are numbered in the order of their names, and a place has its owner's
    number. So other members of the same names take all places over as they are.
    """

    __slots__ = ("_hashes", "_members", "_names", "_owners", "_replication")

    def __init__(
        self,
        hashes: array[int],
        owners: array[int],
        members: Mapping[str, Member],
        replication: int,
    ) -> None:
        self._hashes = hashes
        self._owners = owners
        self._names = tuple(members)
        self._members = tuple(members.values())
        self._replication = replication

    @classmethod
    def of(
        cls,
        members: Mapping[str, Member],
        replication: int,
        previous: Ring[Member] | None = None,
    ) -> Ring[Member]:
        """The ring of members by name, each with `replication` places.

        `previous` only saves time, where most names stay: their places are already in
        order. Where all do, the new ring shares them.
        """
        ordered = {name: members[name] for name in sorted(members)}
        if previous is not None and previous._replication != replication:
            previous = None
        if previous is not None and previous._names == tuple(ordered):
            return cls(previous._hashes, previous._owners, ordered, replication)
        places = _placed(ordered, replication, previous)
        hashes = array("Q", (place for place, _ in places))
        owners = array("I", (owner for _, owner in places))
        return cls(hashes, owners, ordered, replication)

    @property
    def replication(self) -> int:
        """Places of each member."""
        return self._replication

    def __len__(self) -> int:
        return len(self._hashes)

    def walk(self, key: int) -> Iterator[Member]:
        """Each member once, in the order met clockwise from the first place at or after `key`."""
        seen: set[int] = set()
        owners, members = self._owners, self._members
        start = bisect_left(self._hashes, key)
        for part in (range(start, len(owners)), range(start)):
            for position in part:
                owner = owners[position]
                if owner not in seen:
                    seen.add(owner)
                    yield members[owner]
                    if len(seen) == len(members):
                        return


def _placed(names: Iterable[str], replication: int, previous: Ring[Member] | None) -> list[_Place]:
    """All places in order, for names in order: those of the previous ring, and the new ones."""
    numbers = {name: number for number, name in enumerate(names)}
    places = [] if previous is None else _kept(previous, numbers)
    new = numbers.keys() - (() if previous is None else previous._names)
    places += sorted((place, numbers[name]) for name in new for place in _places(name, replication))
    # Two runs in order: Timsort only merges them.
    places.sort()
    return places


def _kept(previous: Ring[Member], numbers: Mapping[str, int]) -> list[_Place]:
    """The places of those that stay, in order, as names in order keep theirs under new numbers."""
    renumbered = [numbers.get(name) for name in previous._names]
    old = zip(previous._hashes, map(renumbered.__getitem__, previous._owners), strict=True)
    return [(place, owner) for place, owner in old if owner is not None]
