"""The consistent-hash ring.

Each member has `replication` virtual nodes on the ring. So members share it evenly, and a member
that leaves gives its share to all others in small parts (Karger et al. 1997). The names of virtual
nodes are KubeAI's: the member's name and a decimal number, hashed with XXH64, seed 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import xxhash

Member = TypeVar("Member")

_MOST_CHANGED = 0.5
"""Share of changed members above which a new ring costs less than a change of the previous one."""


def _hashes_of(name: str, replication: int) -> list[int]:
    """Return the hashes of a member's virtual nodes."""
    digest = xxhash.xxh64_intdigest
    return [digest(f"{name}{i}".encode()) for i in range(replication)]


class Ring(Generic[Member]):
    """An immutable ring: a change of members makes a new ring.

    Two virtual nodes can have the same name (`x-1` + `10` and `x-11` + `0` are one text). Both
    stay, ordered by member name. So the ring depends on the set of members alone, and a member that
    leaves removes only its own nodes.

    Members have numbers, and a node has its member's number. Members that stay keep their numbers,
    so a new ring copies their nodes from the previous one, and costs little besides.
    """

    __slots__ = ("_hashes", "_members", "_numbers", "_owners", "_replication")

    def __init__(
        self,
        hashes: array[int],
        owners: array[int],
        numbers: Mapping[str, int],
        members: Mapping[str, Member],
        replication: int,
    ) -> None:
        self._hashes = hashes
        self._owners = owners
        self._numbers = numbers
        self._members = {numbers[name]: member for name, member in members.items()}
        self._replication = replication

    @classmethod
    def of(
        cls,
        members: Mapping[str, Member],
        replication: int,
        previous: Ring[Member] | None = None,
    ) -> Ring[Member]:
        """Return the ring of members by name, each with `replication` virtual nodes.

        `previous` only saves time: its nodes of the names that stay are in order. If all names
        stay, the new ring shares its nodes.
        """
        if previous is not None and previous._replication == replication:
            left = previous._numbers.keys() - members.keys()
            new = members.keys() - previous._numbers.keys()
            if not left and not new:
                return cls(
                    previous._hashes, previous._owners, previous._numbers, members, replication
                )
            if len(left) + len(new) <= _MOST_CHANGED * len(members):
                return previous._changed(left, new, members)
        numbers = {name: number for number, name in enumerate(sorted(members))}
        nodes = sorted(
            (hashed, number)
            for name, number in numbers.items()
            for hashed in _hashes_of(name, replication)
        )
        hashes = array("Q", (hashed for hashed, _ in nodes))
        owners = array("I", (number for _, number in nodes))
        return cls(hashes, owners, numbers, members, replication)

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

    def _changed(
        self, left: Iterable[str], new: Iterable[str], members: Mapping[str, Member]
    ) -> Ring[Member]:
        """Return the ring without the members that left, and with new ones."""
        hashes, owners, numbers = self._hashes, self._owners, dict(self._numbers)
        positions = sorted(position for name in left for position in self._positions(name))
        if positions:
            hashes, owners = _without(hashes, positions), _without(owners, positions)
        for name in left:
            del numbers[name]
        taken = set(numbers.values())
        free = (number for number in range(len(members)) if number not in taken)
        numbers.update(zip(sorted(new), free, strict=False))
        nodes = sorted(
            (hashed, name) for name in new for hashed in _hashes_of(name, self._replication)
        )
        if nodes:
            names = {number: name for name, number in numbers.items()}
            places = [_place(hashes, owners, names, hashed, name) for hashed, name in nodes]
            hashes = _with(hashes, places, [hashed for hashed, _ in nodes])
            owners = _with(owners, places, [numbers[name] for _, name in nodes])
        return Ring(hashes, owners, numbers, members, self._replication)

    def _positions(self, name: str) -> set[int]:
        """Return the positions of a member's nodes."""
        number, found = self._numbers[name], set[int]()
        for hashed in _hashes_of(name, self._replication):
            position = bisect_left(self._hashes, hashed)
            while self._owners[position] != number or position in found:
                position += 1
            found.add(position)
        return found


def _place(
    hashes: Sequence[int], owners: Sequence[int], names: Mapping[int, str], hashed: int, name: str
) -> int:
    """Return the position before which a new node belongs."""
    position = bisect_left(hashes, hashed)
    while position < len(hashes) and hashes[position] == hashed and names[owners[position]] < name:
        position += 1
    return position


def _without(values: array[int], positions: Iterable[int]) -> array[int]:
    """Return the values except those at the positions, which are in rising order."""
    kept, start = array(values.typecode), 0
    for position in positions:
        kept.extend(values[start:position])
        start = position + 1
    kept.extend(values[start:])
    return kept


def _with(values: array[int], places: Iterable[int], new: Iterable[int]) -> array[int]:
    """Return the values with a new one before each of the places, which are in rising order."""
    found, start = array(values.typecode), 0
    for place, value in zip(places, new, strict=True):
        found.extend(values[start:place])
        found.append(value)
        start = place
    found.extend(values[start:])
    return found
