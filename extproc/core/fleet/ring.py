"""The consistent-hash ring.

Each member has `replication` virtual nodes on the ring. So members share it evenly, and a member
that leaves gives its share to all others in small parts (Karger et al. 1997). The names of virtual
nodes are KubeAI's: the member's name and a decimal number, hashed with XXH64, seed 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import xxhash

Member = TypeVar("Member")

STEP = 4096
"""Virtual nodes of one step. A ring of a thousand members takes a tenth of a second to build, but
each step only a few milliseconds."""

_CHANGED_STEP = STEP // 8
"""The same for a change, which costs more for each node and copies all others."""

_MOST_CHANGED = 0.125
"""Share of changed members above which a new ring costs less than a change of the previous one."""

_PART = 128
"""Nodes that are searched at a time for a few members."""

_HASH_BITS = 64

Pause = Callable[[], None]
"""Called between two steps. A builder in a thread waits there, so that the event loop can run."""


def no_pause() -> None:
    """Continue at once."""


def _suffixes(replication: int) -> list[bytes]:
    """Return the numbers of a member's virtual nodes, as text."""
    return [b"%d" % number for number in range(replication)]


def _hashes_of(name: str, suffixes: Iterable[bytes]) -> list[int]:
    """Return the hashes of a member's virtual nodes."""
    digest, prefix = xxhash.xxh64_intdigest, name.encode()
    return [digest(prefix + suffix) for suffix in suffixes]


class Ring(Generic[Member]):
    """An immutable ring: a change of members makes a new ring.

    Two virtual nodes can have the same name (`x-1` + `10` and `x-11` + `0` are one text). Both
    stay, ordered by member name. So the ring depends on the set of members alone, and a member that
    leaves removes only its own nodes.

    Members have numbers, and a node has its member's number. Members that stay keep their numbers,
    so a new ring copies their nodes from the previous one, and costs little besides. A ring can
    also have nodes of members that left (`only`), which are skipped.
    """

    __slots__ = ("_hashes", "_left", "_members", "_numbers", "_owners", "_replication")

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
        self._left: frozenset[int] = frozenset()
        if len(members) != len(numbers):
            self._left = frozenset(numbers.values()).difference(self._members)
        self._replication = replication

    @classmethod
    def of(
        cls,
        members: Mapping[str, Member],
        replication: int,
        previous: Ring[Member] | None = None,
        pause: Pause = no_pause,
    ) -> Ring[Member]:
        """Return the ring of members by name, each with `replication` virtual nodes.

        `previous` only saves time: its nodes of the names that stay are in order. If all names
        stay, the new ring shares its nodes. `pause` is called after each step; without it, the new
        ring may keep nodes of members that left.
        """
        if previous is not None and previous._replication == replication:
            if pause is no_pause and previous._has_all(members):
                return previous.only(members)
            left = sorted(previous._numbers.keys() - members.keys())
            new = sorted(members.keys() - previous._numbers.keys())
            if len(left) + len(new) <= _MOST_CHANGED * len(members):
                return previous._changed_to(members, left, new, pause)
        numbers = {name: number for number, name in enumerate(sorted(members))}
        parts = _parts(numbers, replication, pause)
        hashes, owners = array("Q"), array("I")
        for part in parts:
            _append_sorted(part, hashes, owners)
            pause()
        return cls(hashes, owners, numbers, members, replication)

    def only(self, members: Mapping[str, Member]) -> Ring[Member]:
        """Return the ring of those of these members that have nodes on this ring.

        It shares all nodes, so it costs little. Nodes of other members are skipped.
        """
        numbers = self._numbers
        known = {name: member for name, member in members.items() if name in numbers}
        return Ring(self._hashes, self._owners, numbers, known, self._replication)

    @property
    def replication(self) -> int:
        """Virtual nodes per member."""
        return self._replication

    @property
    def is_whole(self) -> bool:
        """True if no nodes must be skipped."""
        return not self._left

    def __contains__(self, name: str) -> bool:
        """Return True if the ring has nodes of this name, skipped or not."""
        return name in self._numbers

    def __len__(self) -> int:
        return len(self._members) * self._replication

    def owner(self, key: int) -> Member:
        """Return the member of the first node at or after `key`. The ring must have members."""
        return next(self.walk(key))

    def nodes(self) -> Iterator[tuple[int, Member]]:
        """Yield hash and member of each virtual node, in the order of the ring."""
        members = self._members
        pairs = zip(self._hashes, self._owners, strict=True)
        return ((hashed, members[owner]) for hashed, owner in pairs if owner in members)

    def walk(self, key: int) -> Iterator[Member]:
        """Yield each member once, clockwise from the first node at or after `key`."""
        owners, members = self._owners, self._members
        # A member that left counts as seen.
        seen = set(self._left)
        start, number = bisect_left(self._hashes, key), len(self._numbers)
        for part in (range(start, len(owners)), range(start)):
            for position in part:
                owner = owners[position]
                if owner not in seen:
                    seen.add(owner)
                    yield members[owner]
                    if len(seen) == number:
                        return

    def among(self, key: int, names: Iterable[str]) -> Iterator[Member]:
        """Yield the members of these names in the order of `walk`, which takes longer for few."""
        owners, members, numbers = self._owners, self._members, self._numbers
        left = {numbers[name] for name in names}
        position = start = bisect_left(self._hashes, key)
        end = len(owners)
        for _ in range(2):  # to the end of the ring, then from its beginning
            while position < end:
                part = owners[position : min(position + _PART, end)]
                for owner in filter(left.__contains__, part):
                    yield members[owner]
                    left.remove(owner)
                    if not left:
                        return
                position += _PART
            position, end = 0, start

    def _has_all(self, names: Collection[str]) -> bool:
        """Return True if these are the names of all members."""
        if len(names) != len(self._members):
            return False
        return all(self._numbers.get(name) in self._members for name in names)

    def _changed_to(
        self, members: Mapping[str, Member], left: list[str], new: list[str], pause: Pause
    ) -> Ring[Member]:
        """Return the ring of these members; `left` are those that left, and `new` has new ones."""
        most = max(len(left), len(new))
        at_once = max(1, most if pause is no_pause else _CHANGED_STEP // self._replication)
        ring = self
        for start in range(0, most, at_once):
            stop = start + at_once
            ring = ring._changed(left[start:stop], new[start:stop], members)
            pause()
        return Ring(ring._hashes, ring._owners, ring._numbers, members, self._replication)

    def _changed(
        self, left: Sequence[str], new: Sequence[str], members: Mapping[str, Member]
    ) -> Ring[Member]:
        """Return the ring without the members that left, and with new ones."""
        suffixes = _suffixes(self._replication)
        hashes, owners, numbers = self._hashes, self._owners, dict(self._numbers)
        positions = sorted(position for name in left for position in self._positions(name))
        if positions:
            hashes, owners = _without(hashes, positions), _without(owners, positions)
        for name in left:
            del numbers[name]
        taken = set(numbers.values())
        # A list, because mypyc evaluates a generator expression at once.
        free = [number for number in range(len(taken) + len(new)) if number not in taken]
        numbers.update(zip(new, free, strict=False))
        nodes = sorted((hashed, name) for name in new for hashed in _hashes_of(name, suffixes))
        if nodes:
            names = {number: name for name, number in numbers.items()}
            points = [
                _insertion_point(hashes, owners, names, hashed, name) for hashed, name in nodes
            ]
            hashes = _with(hashes, points, [hashed for hashed, _ in nodes])
            owners = _with(owners, points, [numbers[name] for _, name in nodes])
        known = {name: members[name] for name in numbers if name in members}
        return Ring(hashes, owners, numbers, known, self._replication)

    def _positions(self, name: str) -> set[int]:
        """Return the positions of a member's nodes."""
        number, found = self._numbers[name], set[int]()
        for hashed in _hashes_of(name, _suffixes(self._replication)):
            position = bisect_left(self._hashes, hashed)
            while self._owners[position] != number or position in found:
                position += 1
            found.add(position)
        return found


Part = tuple[list[int], list[int]]
"""The hashes of some virtual nodes, and the numbers of their members."""


def _parts(numbers: Mapping[str, int], replication: int, pause: Pause) -> list[Part]:
    """Return the nodes in parts of about a step: those of each part come before those of the next.

    So no step has to sort the whole ring.
    """
    bits = (len(numbers) * replication // STEP).bit_length()
    parts: list[Part] = [([], []) for _ in range(2**bits)]
    shift, suffixes, hashed = _HASH_BITS - bits, _suffixes(replication), 0
    for name, number in numbers.items():
        for node in _hashes_of(name, suffixes):
            hashes, owners = parts[node >> shift]
            hashes.append(node)
            owners.append(number)
        hashed += replication
        if hashed >= STEP:
            hashed = 0
            pause()
    return parts


def _append_sorted(part: Part, hashes: array[int], owners: array[int]) -> None:
    """Append a part's nodes in order; those of equal hashes in the order of their members."""
    unordered, numbers = part
    by_hash = dict(zip(unordered, numbers, strict=True))
    if len(by_hash) == len(unordered):
        ordered = sorted(unordered)
        hashes.extend(ordered)
        owners.extend(map(by_hash.__getitem__, ordered))
        return
    for node, number in sorted(zip(unordered, numbers, strict=True)):
        hashes.append(node)
        owners.append(number)


def _insertion_point(
    hashes: Sequence[int], owners: Sequence[int], names: Mapping[int, str], hashed: int, name: str
) -> int:
    """Return the position before which a new node is inserted."""
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


def _with(values: array[int], points: Iterable[int], new: Iterable[int]) -> array[int]:
    """Return the values with a new one before each of these positions, in rising order."""
    found, start = array(values.typecode), 0
    for point, value in zip(points, new, strict=True):
        found.extend(values[start:point])
        found.append(value)
        start = point
    found.extend(values[start:])
    return found
