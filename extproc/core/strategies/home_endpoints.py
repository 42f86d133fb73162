"""The home endpoints of a prompt, where sidecars that share no state have probably sent it.

Sidecars agree through the ring: the first endpoints after a prompt's key are its home endpoints,
and each is half as probable as the one before it.

The key is the system prompt, which many prompts share, until all endpoints have it in their caches.
A popular system prompt has more requests than these few endpoints can serve. Then the key is that
of `prefixHash`: the first user message, or a session's header. So the turns of a session meet, and
the sessions of an agent spread over as many endpoints as they need. These are the first on the ring
after the system prompt, with the bound of consistent hashing with bounded loads (arXiv 1608.01350).
If running requests fill much of the KV caches, a prompt with a previous turn gets that key even if
a few endpoints are enough. Otherwise each of them would have to keep the histories of all these
sessions, and there is no room for that.

In a mixed fleet, a slow endpoint passes most prompts on to the next one on the ring. Which ones it
keeps depends on their keys and on the speeds, which all sidecars read from the engines.

No cache has a prompt that shares nothing with earlier ones. So home endpoints count less if little
of the recent prompts had been sent before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil
from random import Random
from typing import NamedTuple

import xxhash

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

_FILLED = 0.3
"""Mean KV cache usage from which they count as filled. On 32 random trials of agents behind four
sidecars, which were not used to choose it, mean TTFT is 32 and 21 % shorter in two than without
this condition, and the same in 30."""

_WINDOW = 256
"""Requests over which shares are measured; up to two windows count."""

_LEAST_KNOWN = 1 / 16
"""Least share of the requests that this sidecar is assumed to know."""

_RECENT = 0.02
"""Weight of the latest prompt in the mean share that repeats earlier ones: about fifty count."""


class Homes(NamedTuple):
    """The home endpoints of one prompt."""

    key: int
    """The place on the ring after which they come."""

    system: int = 0
    """The place of the system prompt on the ring, if only the first endpoints after it count."""

    number: int = 0
    """The number of these; 0 if all endpoints count."""

    def walk(
        self, snapshot: Snapshot, adapter: str, shares: Mapping[str, float]
    ) -> Iterator[Endpoint]:
        """Yield the endpoints, the most probable first.

        `shares` has the share of prompts that each endpoint keeps, by address. It is empty if all
        endpoints keep all.
        """
        if self.number:
            near = snapshot.first(self.system, adapter, self.number)
            ring = snapshot.among(self.key, near)
        else:
            ring = snapshot.walk(self.key, adapter)
        return self._kept_first(ring, shares) if shares else ring

    def _kept_first(
        self, ring: Iterator[Endpoint], shares: Mapping[str, float]
    ) -> Iterator[Endpoint]:
        """Yield the endpoints that keep the prompt, then the others, each in their order."""
        others = list[Endpoint]()
        for one in ring:
            draw: int = xxhash.xxh64_intdigest(one.name.encode(), self.key)
            if draw < shares.get(one.address, 1.0) * 2**64:
                yield one
            else:
                others.append(one)
        yield from others


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
        self._repeated = 1.0  # mean share of a prompt that this sidecar knows to be sent before

    def repeated_share(self, others: float) -> float:
        """Return the share of a prompt that was probably sent before, by any sidecar.

        `others` is the share of requests that this sidecar does not know. An earlier prompt was one
        of these with that probability. At first, all prompts count as sent before.
        """
        return min(1.0, self._repeated / max(1 - others, _LEAST_KNOWN))

    def sent(self, prompt: Prompt, repeated_blocks: int) -> None:
        """Record that a request was sent.

        `repeated_blocks` of its prompts are known to have been sent before. Peers that share their
        state and the previous turn of a conversation count, too.
        """
        blocks = prompt.block_count
        if blocks:
            share = min(1.0, repeated_blocks / blocks)
            self._repeated += _RECENT * (share - self._repeated)
        if self._seen == _WINDOW:
            self._before, self._present = self._present, Counter()
            self._seen_before, self._seen = self._seen, 0
        self._present[prompt.system_hash] += 1
        self._seen += 1

    def of(
        self,
        query: Query,
        prompt: Prompt,
        endpoints: int,
        *,
        everywhere: bool,
        alone: bool,
        kv_usage: float,
    ) -> Homes:
        """Return the home endpoints among this number of endpoints.

        `everywhere`: all of them have the system prompt in their caches. `alone`: there is no other
        sidecar to agree with, so new sessions stay close together. `kv_usage` is the mean share of
        the KV caches that running requests fill. A request without any key gets a random one.
        """
        system = None if self._by_header or query.session else prompt.system_hash
        if system is None or everywhere:
            return Homes(self._usual_key(query))
        if alone:
            return Homes(system)
        needed = _BOUND * endpoints * self._share(system)
        has_previous_turn = prompt.previous_blocks > prompt.system_blocks
        lacks_room = has_previous_turn and needed > 1 and kv_usage >= _FILLED
        if needed <= PLACES and not lacks_room:
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
