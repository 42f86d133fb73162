"""The consistent-hash ring.

Each member stands on the ring `replication` times, so that members share it
evenly and one that leaves gives its share to all others in small parts
(Karger et al. 1997). Places are named as KubeAI names them: the member's name
followed by a decimal number, hashed with XXH64, seed 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
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

    __slots__ = ("_hashes", "_members", "_owners")

    def __init__(self, hashes: array[int], owners: list[Member], members: int) -> None:
        self._hashes = hashes
        self._owners = owners
        self._members = members

    @classmethod
    def of(cls, members: Mapping[str, Member], replication: int) -> Ring[Member]:
        """The ring of members by name, each with `replication` places."""
        places = sorted((place, name) for name in members for place in _places(name, replication))
        hashes = array("Q", (place for place, _ in places))
        return cls(hashes, [members[name] for _, name in places], len(members))

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
                    if len(seen) == self._members:
                        return
