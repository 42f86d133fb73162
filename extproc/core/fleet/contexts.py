"""The prompts that endpoints hold: of requests in flight, and of sessions that pause.

A cached prompt is not free while its request runs. The engine reads its keys and values for each
token of the response, and they fill the cache.

Between two turns of a session no request is in flight, but the next turn will come to the same
endpoint. An agent's session pauses for seconds while its tool runs, and ten sessions on one
endpoint then look like an idle endpoint. So a session counts for a while after its response has
ended: as the share of recent requests that did continue a session, times the share of its time that
a session has a request in flight.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from math import exp, inf
from typing import NamedTuple

from extproc.core.fleet.totals import Totals

LEAST_SECONDS = 0.5
MOST_SECONDS = 60.0
"""Limits of the time that a paused session counts. After the longer one, it has ended."""

_EXPIRY_SECONDS = 1.0
"""Seconds after which ended requests let sessions expire that no decision has let expire."""

_MEANS = 2.0
"""Mean pauses that a paused session counts for. Few of those that continue take longer. In the
laboratory, 1.5 and 3 gave about the same times as 2 for what full caches evict."""

_LEAST_STEP = 0.005
"""Weight of the latest session in the learned values: two hundred count."""

Session = tuple[str, int]
"""An endpoint, and the run of its prefix index in which the session's prompts end."""


class Stored(NamedTuple):
    """The place of a prompt in the prefix index."""

    run: int = 0
    """The run in which it ends; 0 if it has no blocks."""

    prefix: int | None = None
    """The last block of it that some endpoint had before; None if none had any."""


class _Pause(NamedTuple):
    """The pause of a session."""

    since: float

    prefix: int | None
    """The prefix that the session shares with others."""


class Context:
    """The prompt of one request in flight.

    `prefix` is what its session shares with others: the prefix that the session began with. What
    later turns have in common with the cache is the session's own history.
    """

    __slots__ = ("_contexts", "address", "prefix", "run", "since", "tokens")

    def __init__(
        self, contexts: Contexts, address: str, stored: Stored, tokens: float, since: float
    ) -> None:
        self._contexts = contexts
        self.address = address
        self.run, self.prefix = stored
        self.tokens = tokens
        self.since = since

    def end(self) -> None:
        """Record that the request has ended, so that its session pauses."""
        self._contexts.end(self)

    def move(self, address: str) -> None:
        """Move the prompt to the endpoint that serves the request after a retry."""
        self._contexts.move(self, address)


class Contexts:
    """Prompt tokens in flight and paused sessions, by endpoint address."""

    def __init__(self, clock: Callable[[], float], totals: Totals | None = None) -> None:
        self._clock = clock
        self._requests: dict[str, int] = {}
        self._sharing: defaultdict[int, int] = defaultdict(int)
        # When each session paused, the earliest first: those that count, and those that no longer
        # count but may still continue.
        self._counting: OrderedDict[Session, _Pause] = OrderedDict()
        self._late: OrderedDict[Session, _Pause] = OrderedDict()
        self._ended = 0
        self._over = 0
        self._expired_at = -inf
        self._mean_pause = MOST_SECONDS / _MEANS
        self._mean_service = 0.0
        self.totals = totals or Totals()
        """Gets tokens and paused sessions. Call `expire` before you read the sessions."""
        self._continued = 0.0

    @property
    def continued(self) -> float:
        """Share of the recent pauses that a request ended.

        A pause that is longer than usual counts as one that no request will end. Otherwise all
        pauses would seem to continue at first, because only these are over soon.
        """
        over = self._over + len(self._late)
        return self._continued * self._over / over if over else 0.0

    @property
    def share_in_flight(self) -> float:
        """Share of its time that a session has a request in flight; 0 if unknown."""
        together = self._mean_service + self._mean_pause
        return self._mean_service / together if together else 0.0

    def continued_after(self, seconds: float) -> float:
        """Return the share of sessions that continue more than these seconds after a request began.

        The time from one request of a session to the next includes the first one's response. It
        counts as exponentially distributed, with twice the recent mean, because sessions differ.
        """
        usual = _MEANS * (self._mean_service + self._mean_pause)
        return self.continued * exp(-seconds / max(usual, LEAST_SECONDS))

    def expire(self) -> None:
        """Let the sessions that have paused for long no longer count."""
        now = self._expired_at = self._clock()
        limit = min(max(_MEANS * self._mean_pause, LEAST_SECONDS), MOST_SECONDS)
        while self._counting:
            session, pause = next(iter(self._counting.items()))
            if now - pause.since < limit:
                break
            self._late[session] = self._uncount(session)
        while self._late:
            session, pause = next(iter(self._late.items()))
            if now - pause.since < MOST_SECONDS:
                break
            del self._late[session]
            self._learn(0.0)

    def sharing(self, prefix: int) -> int:
        """Return the requests in flight whose sessions share this prefix."""
        return self._sharing.get(prefix, 0)

    def pauses(self, session: Session) -> bool:
        """Return True if this session counts as paused."""
        return session in self._counting

    def begin(
        self, address: str, stored: Stored, tokens: float, began: float | None = None
    ) -> Context:
        """Record that a request began, now or at that time. It may continue a paused session."""
        now = self._clock() if began is None else began
        context = Context(self, address, stored, tokens, now)
        self._add(context, +1)
        pause = self._resume((address, context.run))
        if pause is not None:
            context.prefix = pause.prefix
            step = self._learn(1.0)
            self._mean_pause += step * (now - pause.since - self._mean_pause)
        if context.prefix is not None:
            self._sharing[context.prefix] += 1
        return context

    def end(self, context: Context) -> None:
        """Record that a request has ended, so that its session pauses."""
        self._add(context, -1)
        if context.prefix is not None:
            self._sharing[context.prefix] -= 1
            if not self._sharing[context.prefix]:
                del self._sharing[context.prefix]
        now = self._clock()
        if now >= self._expired_at + _EXPIRY_SECONDS:
            self.expire()
        self._ended += 1
        step = max(_LEAST_STEP, 1 / self._ended)
        self._mean_service += step * (now - context.since - self._mean_service)
        if context.run:
            session = (context.address, context.run)
            self._resume(session)
            self._counting[session] = _Pause(now, context.prefix)
            self.totals.of(context.address).paused += 1

    def move(self, context: Context, address: str) -> None:
        """Move a prompt to another endpoint. Its session is not found there."""
        self._add(context, -1)
        context.address, context.run = address, 0
        self._add(context, +1)

    def forget(self, address: str) -> None:
        """Forget the paused sessions of an endpoint that left or restarted."""
        for pauses in (self._counting, self._late):
            for session in [one for one in pauses if one[0] == address]:
                del pauses[session]
        self.totals.of(address).paused = 0.0

    def _add(self, context: Context, step: int) -> None:
        address = context.address
        total = self.totals.of(address)
        number = self._requests.get(address, 0) + step
        if number:
            self._requests[address] = number
            total.context += step * context.tokens
        else:
            del self._requests[address]
            total.context = 0.0  # leaves no rounding error

    def _resume(self, session: Session) -> _Pause | None:
        """End the pause of a session and return it; None if the session does not pause."""
        if session in self._counting:
            return self._uncount(session)
        return self._late.pop(session, None)

    def _uncount(self, session: Session) -> _Pause:
        """Let a paused session no longer count, and return its pause."""
        self.totals.of(session[0]).paused -= 1
        return self._counting.pop(session)

    def _learn(self, outcome: float) -> float:
        """Record if a request continued a session, and return the weight of this outcome."""
        self._over += 1
        step = max(_LEAST_STEP, 1 / self._over)
        self._continued += step * (outcome - self._continued)
        return step
