"""The prompt tokens that each endpoint has yet to compute: its prefill backlog.

A prompt is work for an endpoint until its first token. If Envoy forwards response bodies, their
first bytes mark the first token. Otherwise the engine's counter of first tokens shows how many
requests have not started to respond. Engines admit requests in order, so these are the latest
ones, with those that the metrics do not show yet. If neither is known, a prompt counts until its
response ends.

Metrics come a few times a second, and an engine computes several prompts in between. So the
estimate falls with time, by the speed that is known of the endpoint (`extproc.core.fleet.speeds`),
and reaches zero. Each scrape corrects it: the first prompt that has no first token is not complete.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import inf

from extproc.core.fleet.speeds import Speeds
from extproc.core.fleet.totals import Totals

_RECENT = 0.02
"""Weight of the latest prompt in the mean: about fifty count."""

_PROBABLE = 0.8
"""Share of its known speed at which an endpoint is assumed to compute. A request that comes too
early has to wait, and one that goes elsewhere only misses a choice."""

_INCOMPLETE = 0.9
"""Most of a prompt that counts as computed when metrics show that it has no first token."""

STEP_TOKENS = 250.0
"""Tokens that count once for an endpoint with prompts to compute. An engine computes all of them in
one step if they are short, but a new request waits until that step ends. In the laboratory's
profiles, the base of a step takes the time of 70 to 230 tokens; context and admission add to it."""

_STEP_SECONDS = 0.02
"""Least seconds between two estimates."""

_STEP_SECONDS_EACH = 0.0002
"""The same for each endpoint, because an estimate reads all queues: it takes 1 % of the time."""


class _Queue:
    """The prompts of one endpoint without a first token, oldest first."""

    __slots__ = ("_address", "_at", "_backlog", "_computed", "_sum", "prefills")

    def __init__(self, backlog: Backlog, address: str) -> None:
        self._backlog = backlog
        self._address = address
        self.prefills: OrderedDict[Prefill, None] = OrderedDict()
        self._sum = 0.0
        self._computed = 0.0
        self._at = 0.0

    def add(self, prefill: Prefill) -> None:
        if not self.prefills:
            self._at = self._backlog.clock()
        self._computed = min(self._computed, self._sum)  # it needs another step
        self.prefills[prefill] = None
        self._sum += prefill.tokens
        self._write()

    def remove(self, prefill: Prefill) -> None:
        is_first = next(iter(self.prefills)) is prefill
        del self.prefills[prefill]
        self._sum -= prefill.tokens
        if is_first:
            self._computed = max(0.0, self._computed - prefill.tokens)
        if not self.prefills:
            self._sum = self._computed = 0.0  # leaves no rounding error
        self._write()

    def advance(self, now: float, speeds: Speeds) -> None:
        """Count what the endpoint has probably computed since the last call as computed."""
        seconds = speeds.seconds(self._address, len(self.prefills), self._sum)
        share = max(0.0, now - self._at) * _PROBABLE / seconds
        work = self._sum + STEP_TOKENS
        self._computed = min(self._computed + share * work, work)
        self._at = now
        self._write()

    def correct(self) -> None:
        """Take note that the first prompt is not complete."""
        first = next(iter(self.prefills))
        self._computed = min(self._computed, _INCOMPLETE * first.tokens)
        self._write()

    def _write(self) -> None:
        """Write the sum of the prompts, and the estimate of what is left of it."""
        if self.prefills:
            left = max(0.0, self._sum + STEP_TOKENS - self._computed)
            self._backlog.write(self._address, self._sum, left)
        else:
            self._backlog.write(self._address, None, 0.0)


class Prefill:
    """One prompt in an endpoint's backlog."""

    __slots__ = ("_backlog", "address", "at", "tokens")

    def __init__(self, backlog: Backlog, address: str, tokens: float) -> None:
        self._backlog = backlog
        self.address = address
        self.tokens = tokens
        self.at = backlog.clock()

    @property
    def remaining(self) -> float:
        """Tokens that the endpoint has yet to compute."""
        return 0.0 if self._backlog.queue_of(self) is None else self.tokens

    def finish(self) -> None:
        """Remove this prompt and all before it, because it has its first token.

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
            self.address, self.at = address, self._backlog.clock()
            self._backlog.put(self)


class Backlog:
    """Prompt tokens by endpoint address."""

    def __init__(self, speeds: Speeds, totals: Totals | None = None) -> None:
        self._speeds = speeds
        self._queues: dict[str, _Queue] = {}
        self._tokens: dict[str, float] = {}
        self._advanced_at = -inf
        self._added = 0
        self.clock = speeds.clock
        self.tokens: Mapping[str, float] = self._tokens
        """Tokens of the prompts without a first token; a missing address has none."""
        self.totals = totals or Totals()
        """Gets the estimate of the tokens to compute for these prompts, with `STEP_TOKENS` for an
        endpoint with prompts. Call `advance` before you read it.
        """
        self.mean = 0.0
        """Mean tokens to compute per prompt, of the recent prompts."""

    def add(self, address: str, tokens: float) -> Prefill:
        """Add a prompt with this number of tokens to compute."""
        prefill = Prefill(self, address, max(tokens, 0.0))
        self._added += 1
        share = max(_RECENT, 1 / self._added)
        self.mean += share * (prefill.tokens - self.mean)
        self.put(prefill)
        return prefill

    def count(self, address: str) -> int:
        """Return the number of prompts that the endpoint has yet to compute."""
        queue = self._queues.get(address)
        return len(queue.prefills) if queue else 0

    def is_known(self, address: str) -> bool:
        """Return True if the endpoint has had prompts, so that its requests are in the backlog."""
        return address in self._queues

    def sent_since(self, address: str, at: float) -> int:
        """Return the number of these prompts that were sent since that time."""
        queue, number = self._queues.get(address), 0
        for prefill in reversed(queue.prefills) if queue else ():
            if prefill.at < at:
                break
            number += 1
        return number

    def at_most(self, address: str, number: int) -> None:
        """Keep only this number of prompts, the latest ones. None of these is complete."""
        queue = self._queues.get(address)
        if queue is None or not queue.prefills:
            return
        queue.advance(self.clock(), self._speeds)
        while len(queue.prefills) > number:
            self.computed(queue, next(iter(queue.prefills)))
        if queue.prefills:
            queue.correct()

    def advance(self) -> None:
        """Estimate what endpoints have computed by now."""
        now = self.clock()
        interval = max(_STEP_SECONDS, _STEP_SECONDS_EACH * len(self._queues))
        if now >= self._advanced_at + interval:
            self._advanced_at = now
            for queue in self._queues.values():
                if queue.prefills:
                    queue.advance(now, self._speeds)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._queues.pop(address, None)
        self.write(address, None, 0.0)

    def put(self, prefill: Prefill) -> None:
        """Add a prompt to the queue of its address."""
        queue = self._queues.get(prefill.address)
        if queue is None:
            queue = self._queues[prefill.address] = _Queue(self, prefill.address)
        if not queue.prefills:
            self._speeds.began(prefill.address)
        queue.add(prefill)

    def computed(self, queue: _Queue, prefill: Prefill) -> None:
        """Remove a prompt because it has been computed."""
        queue.remove(prefill)
        self._speeds.computed(prefill.address, prefill.tokens)

    def write(self, address: str, tokens: float | None, left: float) -> None:
        """Set the tokens of an endpoint's prompts, None without any, and those left to compute."""
        if tokens is None:
            self._tokens.pop(address, None)
        else:
            self._tokens[address] = tokens
        total = self.totals.of(address)
        total.known_backlog = left
        total.add_up()

    def queue_of(self, prefill: Prefill) -> _Queue | None:
        """Return the queue that the prompt is in; None if it is computed."""
        queue = self._queues.get(prefill.address)
        return queue if queue is not None and prefill in queue.prefills else None
