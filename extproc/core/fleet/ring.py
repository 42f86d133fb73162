"""The consistent-hash ring.

Each member has `replication` virtual nodes on the ring. So members share it evenly, and a member
that leaves gives its share to all others in small parts (Karger et al. 1997). The names of virtual
nodes are KubeAI's: the member's name and a decimal number, hashed with XXH64, seed 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

import xxhash

Member = TypeVar("Member")

_Node = tuple[int, int]
"""A virtual node: its hash, and the number of its member."""


@lru_cache(maxsize=4096)
def _hashes_of(name: str, replication: int) -> tuple[int, ...]:
    """Return the hashes of a member; cached, because each change of members rebuilds a ring."""
    digest = xxhash.xxh64_intdigest
    return tuple(digest(f"{name}{i}".encode()) for i in range(replication))


class Ring(Generic[Member]):
    """An immutable ring: a change of members makes a new ring.

    Two virtual nodes can have the same name (`x-1` + `10` and `x-11` + `0` are one text). Both
    stay, ordered by member name. So the ring depends on the set of members alone, and a member that
    leaves removes only its own nodes.

    Members are numbered in the order of their names, and a node has its member's number. So a
    new ring with the same names can share all nodes.
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
        """Return the ring of members by name, each with `replication` virtual nodes.

        `previous` only saves time: the nodes of names that stay are already in order. If all names
        stay, the new ring shares its nodes.
        """
        ordered = {name: members[name] for name in sorted(members)}
        if previous is not None and previous._replication != replication:
            previous = None
        if previous is not None and previous._names == tuple(ordered):
            return cls(previous._hashes, previous._owners, ordered, replication)
        nodes = _nodes(ordered, replication, previous)
        hashes = array("Q", (hashed for hashed, _ in nodes))
        owners = array("I", (owner for _, owner in nodes))
        return cls(hashes, owners, ordered, replication)

    @property
    def replication(self) -> int:
        """Virtual nodes per member."""
        return self._replication

    def __len__(self) -> int:
        return len(self._hashes)

    def walk(self, key: int) -> Iterator[Member]:
        """Yield each member once, clockwise from the first node at or after `key`."""
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


def _nodes(names: Iterable[str], replication: int, previous: Ring[Member] | None) -> list[_Node]:
    """Return all nodes in order: those kept from the previous ring, and the new ones."""
    numbers = {name: number for number, name in enumerate(names)}
    nodes = [] if previous is None else _kept(previous, numbers)
    new = numbers.keys() - (() if previous is None else previous._names)
    nodes += sorted(
        (hashed, numbers[name]) for name in new for hashed in _hashes_of(name, replication)
    )
    # Both parts are sorted, and Timsort merges sorted runs.
    nodes.sort()
    return nodes


def _kept(previous: Ring[Member], numbers: Mapping[str, int]) -> list[_Node]:
    """Return the nodes of the names that stay, renumbered and still in order."""
    renumbered = [numbers.get(name) for name in previous._names]
    old = zip(previous._hashes, map(renumbered.__getitem__, previous._owners), strict=True)
    return [(hashed, owner) for hashed, owner in old if owner is not None]
