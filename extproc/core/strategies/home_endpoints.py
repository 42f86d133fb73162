"""The home endpoints of a prompt, where sidecars that share no state have probably sent it.

Sidecars agree through the ring: the first endpoints after a prompt's key are its home endpoints,
and each is half as probable as the one before it.

The key is the system prompt, which many prompts share, until all endpoints have it in their caches.
A popular system prompt has more requests than these few endpoints can serve. Then the key is that
of `prefixHash`: the first user message, or a session's header. So the turns of a session meet, and
the sessions of an agent spread over as many endpoints as they need. These are the first on the ring
after the system prompt, with the bound of consistent hashing with bounded loads (arXiv 1608.01350).

Prompts that share nothing with others are nowhere. So home endpoints count less if a sidecar knows
of few recent prompts that a part of them had been sent before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from math import ceil
from random import Random
from typing import NamedTuple

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.request.blocks import Prompt
from extproc.core.strategies.base import Query

PLACES = 3
"""Home endpoints of a prompt."""

_BOUND = 1.25
"""Endpoints for a system prompt, as a multiple of its share of the fleet. KubeAI's default bound is
the same multiple of the mean load."""

_LARGE = 0.5
"""Share of the fleet from which all endpoints serve a system prompt."""

_WINDOW = 256
"""Requests over which shares are measured; up to two windows count."""

_MOSTLY = 0.5
"""Share of the recent prompts' blocks from which home endpoints count fully. Only blocks count that
are known to have been sent before. Another sidecar may have sent the rest."""

_RECENT = 0.02
"""Weight of the latest prompt in that share: about fifty count."""


class Homes(NamedTuple):
    """The home endpoints of one prompt."""

    key: int
    """The place on the ring after which they come."""

    system: int = 0
    """The place of the system prompt on the ring, if only the first endpoints after it count."""

    number: int = 0
    """The number of these; 0 if all endpoints count."""

    def walk(self, snapshot: Snapshot, adapter: str) -> Iterator[Endpoint]:
        """Yield the endpoints, the most probable first."""
        ring = snapshot.walk(self.key, adapter)
        if not self.number:
            return ring
        near = {one.name for one in islice(snapshot.walk(self.system, adapter), self.number)}
        return (one for one in ring if one.name in near)


class HomeEndpoints:
    """Chooses the key of each prompt by the recent requests of one model.

    `by_header`: the key is a header, and has priority over the system prompt.
    """

    def __init__(self, rng: Random, *, by_header: bool) -> None:
        self._rng = rng
        self._by_header = by_header
        self._before = Counter[int | None]()
        self._present = Counter[int | None]()
        self._seen = 0
        self._seen_before = 0
        self._known = 1.0

    @property
    def relevance(self) -> float:
        """Weight of home endpoints: 1, and less if few of the prompts had been sent before."""
        return min(1.0, self._known / _MOSTLY)

    def sent(self, prompt: Prompt, known_blocks: int) -> None:
        """Record that a request was sent.

        `known_blocks` of its prompt are known to have been sent before, by any sidecar.
        """
        if prompt.blocks:
            share = min(1.0, known_blocks / len(prompt.blocks))
            self._known += _RECENT * (share - self._known)
        if self._seen == _WINDOW:
            self._before, self._present = self._present, Counter()
            self._seen_before, self._seen = self._seen, 0
        self._present[prompt.system_hash] += 1
        self._seen += 1

    def of(
        self, query: Query, prompt: Prompt, endpoints: int, *, everywhere: bool, alone: bool
    ) -> Homes:
        """Return the home endpoints among this number of endpoints.

        `everywhere`: all of them have the system prompt in their caches. `alone`: there is no other
        sidecar to agree with, so new sessions stay close together. A request without any key gets a
        random one.
        """
        system = None if self._by_header or query.session else prompt.system_hash
        if system is None or everywhere:
            return Homes(self._usual_key(query))
        if alone:
            return Homes(system)
        needed = _BOUND * endpoints * self._share(system)
        if needed <= PLACES:
            return Homes(system)
        is_large = needed >= _LARGE * endpoints
        return Homes(self._usual_key(query), system, 0 if is_large else ceil(needed))

    def _usual_key(self, query: Query) -> int:
        return self._rng.getrandbits(64) if query.key is None else query.key

    def _share(self, system: int) -> float:
        """Return the share of the recent requests that have this system prompt."""
        seen = self._seen + self._seen_before
        found = self._present[system] + self._before[system]
        return found / seen if seen else 0.0
