"""What engines have yet to compute before the answers that wait for it begin.

A prompt that was sent to an endpoint is work until its first token is out. Where Envoy shows us
answers, that is when one begins. Elsewhere nobody tells before the answer is over; but
engines count the first tokens that they gave out, so it is known how many requests have yet to
begin there, and since they are admitted in the order in which they came, which ones. Where
neither is known, a prompt counts until its answer ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from extproc.core.fleet.totals import Totals

_RECENT = 0.02
"""Weight of the latest prompt in their mean: some fifty count."""


class _Queue:
    """The prompts of one endpoint whose first tokens are not out, the oldest first."""

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
            del self._tokens[self._address]  # and no rounding stays behind
        self._totals.changed(self._address)


class Prefill:
    """One prompt's share of an endpoint's backlog."""

    __slots__ = ("_backlog", "address", "tokens")

    def __init__(self, backlog: Backlog, address: str, tokens: float) -> None:
        self._backlog = backlog
        self.address = address
        self.tokens = tokens

    def began(self) -> None:
        """Its answer has begun, so this and all before it is computed. Again, it does nothing."""
        queue = self._backlog.queue_of(self)
        while queue is not None and self in queue.prefills:
            queue.remove(next(iter(queue.prefills)))

    def end(self) -> None:
        """Nobody waits for it any more. Again, it does nothing."""
        queue = self._backlog.queue_of(self)
        if queue is not None:
            queue.remove(self)

    def move(self, address: str) -> None:
        """Another endpoint computes it, if it is still to be computed."""
        queue = self._backlog.queue_of(self)
        if queue is not None:
            queue.remove(self)
            self.address = address
            self._backlog.put(self)


class Backlog:
    """Prompt tokens by endpoint address."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._tokens: dict[str, float] = {}
        self.tokens: Mapping[str, float] = self._tokens
        """What is to be computed; an address that is not there has nothing."""
        self.totals = Totals(self._tokens)
        """With what others' prompts have to compute there, as far as somebody tells."""
        self.mean = 0.0
        """Of the tokens that are computed for a prompt, of late."""

    def add(self, address: str, tokens: float) -> Prefill:
        """A prompt goes there, of which so many tokens are to be computed."""
        prefill = Prefill(self, address, max(tokens, 0.0))
        self.mean += _RECENT * (prefill.tokens - self.mean) if self.mean else prefill.tokens
        self.put(prefill)
        return prefill

    def count(self, address: str) -> int:
        """Prompts that are to be computed there."""
        queue = self._queues.get(address)
        return len(queue.prefills) if queue else 0

    def at_most(self, address: str, number: int) -> None:
        """Of the requests there no more than so many have yet to begin: the last ones."""
        queue = self._queues.get(address)
        while queue is not None and len(queue.prefills) > number:
            queue.remove(next(iter(queue.prefills)))

    def forget(self, address: str) -> None:
        """The endpoint has left or started anew."""
        self._queues.pop(address, None)
        self._tokens.pop(address, None)
        self.totals.changed(address)

    def put(self, prefill: Prefill) -> None:
        """A prompt is to be computed at its address."""
        queue = self._queues.get(prefill.address)
        if queue is None:
            queue = self._queues[prefill.address] = _Queue(
                prefill.address, self._tokens, self.totals
            )
        queue.add(prefill)

    def queue_of(self, prefill: Prefill) -> _Queue | None:
        """Where it is still to be computed."""
        queue = self._queues.get(prefill.address)
        return queue if queue is not None and prefill in queue.prefills else None
