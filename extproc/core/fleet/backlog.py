"""The prompt tokens that each endpoint has yet to compute: its prefill backlog.

A prompt is work for an endpoint until its first token. If Envoy forwards response bodies, their
first bytes mark the first token. Otherwise the engine's counter of first tokens shows how many
requests have not started to respond. Engines admit requests in order, so these are the latest
ones. If neither is known, a prompt counts until its response ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from extproc.core.fleet.speeds import Speeds
from extproc.core.fleet.totals import Totals

_RECENT = 0.02
"""Weight of the latest prompt in the mean: about fifty count."""


class _Queue:
    """The prompts of one endpoint without a first token, oldest first."""

    __slots__ = ("_address", "_tokens", "_totals", "prefills")

    def __init__(self, address: str, tokens: dict[str, float], totals: Totals) -> None:
        self._address = address
        self._tokens = tokens
        self._totals = totals
        self.prefills: OrderedDict[Prefill, None] = OrderedDict()

    def add(self, prefill: Prefill) -> None:
        self.prefills[prefill] = None
        self._tokens[self._address] = self._tokens.get(self._address, 0.0) + prefill.tokens
        self._totals.changed(self._address)

    def remove(self, prefill: Prefill) -> None:
        del self.prefills[prefill]
        if self.prefills:
            self._tokens[self._address] -= prefill.tokens
        else:
            del self._tokens[self._address]  # leaves no rounding error
        self._totals.changed(self._address)


class Prefill:
    """One prompt in an endpoint's backlog."""

    __slots__ = ("_backlog", "address", "tokens")

    def __init__(self, backlog: Backlog, address: str, tokens: float) -> None:
        self._backlog = backlog
        self.address = address
        self.tokens = tokens

    @property
    def remaining(self) -> float:
        """Tokens that the endpoint has yet to compute."""
        return 0.0 if self._backlog.queue_of(self) is None else self.tokens

    def finish(self) -> None:
        """Remove this prompt and all before it, because its response has begun.

        A second call does nothing.
        """
        queue = self._backlog.queue_of(self)
        while queue is not None and self in queue.prefills:
            self._backlog.computed(queue, next(iter(queue.prefills)))

    def cancel(self) -> None:
        """Remove this prompt, because its request has ended. A second call does nothing."""
        queue = self._backlog.queue_of(self)
        if queue is not None:
            queue.remove(self)

    def move(self, address: str) -> None:
        """Move the prompt to another endpoint, unless it is computed already."""
        queue = self._backlog.queue_of(self)
        if queue is not None:
            queue.remove(self)
            self.address = address
            self._backlog.put(self)


class Backlog:
    """Prompt tokens by endpoint address."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._queues: dict[str, _Queue] = {}
        self._tokens: dict[str, float] = {}
        self.tokens: Mapping[str, float] = self._tokens
        """Tokens to compute; a missing address has none."""
        self.totals = Totals(self._tokens)
        """Tokens to compute for these prompts and, as far as metrics show them, for others."""
        self.mean = 0.0
        """Mean tokens to compute per prompt, of the recent prompts."""

    def add(self, address: str, tokens: float) -> Prefill:
        """Add a prompt with this number of tokens to compute."""
        prefill = Prefill(self, address, max(tokens, 0.0))
        self.mean += _RECENT * (prefill.tokens - self.mean) if self.mean else prefill.tokens
        self.put(prefill)
        return prefill

    def count(self, address: str) -> int:
        """Return the number of prompts that the endpoint has yet to compute."""
        queue = self._queues.get(address)
        return len(queue.prefills) if queue else 0

    def at_most(self, address: str, number: int) -> None:
        """Keep only this number of prompts, the latest ones."""
        queue = self._queues.get(address)
        while queue is not None and len(queue.prefills) > number:
            self.computed(queue, next(iter(queue.prefills)))

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._queues.pop(address, None)
        self._tokens.pop(address, None)
        self.totals.changed(address)

    def put(self, prefill: Prefill) -> None:
        """Add a prompt to the queue of its address."""
        queue = self._queues.get(prefill.address)
        if queue is None:
            queue = self._queues[prefill.address] = _Queue(
                prefill.address, self._tokens, self.totals
            )
        if not queue.prefills:
            self._speeds.began(prefill.address)
        queue.add(prefill)

    def computed(self, queue: _Queue, prefill: Prefill) -> None:
        """Remove a prompt because it has been computed."""
        queue.remove(prefill)
        self._speeds.computed(prefill.address, prefill.tokens)

    def queue_of(self, prefill: Prefill) -> _Queue | None:
        """Return the queue that the prompt is in; None if it is computed."""
        queue = self._queues.get(prefill.address)
        return queue if queue is not None and prefill in queue.prefills else None
