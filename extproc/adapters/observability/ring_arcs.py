"""A model's ring as the status page draws it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypedDict

import xxhash

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.ring import Ring

MOST_NODES = 4096
"""The most virtual nodes that are drawn one by one."""

SAMPLES = 2048
"""Points of a larger ring whose owners are drawn."""

_MOST_WALKED = 9
_KEYS = 2**64


class Arcs(TypedDict):
    """The arcs of a ring."""

    nodes: int
    """Virtual nodes."""
    exact: bool
    """False if the owners were sampled."""
    addresses: list[str]
    ends: list[float]
    """The end of each arc, as a share of the circle. It begins at the end of the one before."""
    owners: list[int]
    """Positions in `addresses`."""


def arcs(snapshot: Snapshot) -> Arcs:
    """Return the arcs of a snapshot's ring. An endpoint gets the keys of its arcs."""
    positions = {one.address: position for position, one in enumerate(snapshot.endpoints)}
    ring = snapshot.ring
    is_exact = len(ring) <= MOST_NODES
    nodes = ring.nodes() if is_exact else _sampled(ring)
    drawn = list(_merged((end, positions[one.address]) for end, one in nodes))
    return {
        "nodes": len(ring),
        "exact": is_exact,
        "addresses": list(positions),
        "ends": [round(end / _KEYS, 7) for end, _ in drawn],
        "owners": [owner for _, owner in drawn],
    }


def version_of(snapshot: Snapshot) -> str:
    """Return a text that changes with the arcs."""
    members = [f"{one.name} {one.address}" for one in snapshot.endpoints]
    return xxhash.xxh64_hexdigest("\n".join([str(snapshot.ring.replication), *members]).encode())


def walk(snapshot: Snapshot, key: int, adapter: str, endpoints: int) -> list[str]:
    """Return the addresses of the first endpoints after the key, on the ring as it is now."""
    met = islice(snapshot.walk(key, adapter), min(endpoints, _MOST_WALKED))
    return [endpoint.address for endpoint in met]


def _sampled(ring: Ring[Endpoint]) -> Iterator[tuple[int, Endpoint]]:
    """Yield the owners at equal distances: a large ring has too many nodes to read them all."""
    for sample in range(SAMPLES):
        middle = (2 * sample + 1) * _KEYS // (2 * SAMPLES)
        yield (sample + 1) * _KEYS // SAMPLES, ring.owner(middle)


def _merged(nodes: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the last one of neighboring nodes with the same owner."""
    last: tuple[int, int] | None = None
    for node in nodes:
        if last is not None and last[1] != node[1]:
            yield last
        last = node
    if last is not None:
        yield last
