"""The consistent-hash ring.

Each member stands on the ring `replication` times, so that members share it
evenly and one that leaves gives its share to all others in small parts
(Karger et al. 1997). Places are named as KubeAI names them: the member's name
followed by a decimal number, hashed with XXH64, seed 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import xxhash

Member = TypeVar("Member")


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
    """

    __slots__ = ("_hashes", "_members", "_names", "_owners", "_replication")

    def __init__(
        self, places: Sequence[tuple[int, str]], members: Mapping[str, Member], replication: int
    ) -> None:
        self._hashes = array("Q", (place for place, _ in places))
        self._names = [name for _, name in places]
        self._owners = [members[name] for name in self._names]
        self._members = frozenset(members)
        self._replication = replication

    @classmethod
    def of(
        cls,
        members: Mapping[str, Member],
        replication: int,
        previous: Ring[Member] | None = None,
    ) -> Ring[Member]:
        """The ring of members by name, each with `replication` places.

        `previous` only saves time, where most members stay as they were: their places
        are already in order.
        """
        if previous is None or previous._replication != replication:
            places = []
            new: Iterable[str] = members
        else:
            old = zip(previous._hashes, previous._names, strict=True)
            places = [place for place in old if place[1] in members]
            new = members.keys() - previous._members
        places += sorted((place, name) for name in new for place in _places(name, replication))
        # Two runs in order: Timsort only merges them.
        places.sort()
        return cls(places, members, replication)

    @property
    def replication(self) -> int:
        """Places of each member."""
        return self._replication

    def __len__(self) -> int:
        return len(self._hashes)

    def walk(self, key: int) -> Iterator[Member]:
        """Each member once, in the order met clockwise from the first place at or after `key`."""
        seen: set[int] = set()
        owners = self._owners
        start = bisect_left(self._hashes, key)
        for part in (range(start, len(owners)), range(start)):
            for position in part:
                owner = owners[position]
                if id(owner) not in seen:
                    seen.add(id(owner))
                    yield owner
                    if len(seen) == len(self._members):
                        return
