"""The speeds at which endpoints compute prompts, learned from the engines' metrics.

A fleet may mix GPUs, and an endpoint may be slow because it is hot or shares its host. Each scrape
shows which prompts have been computed since the scrape before. While prompts were waiting, the
endpoint was busy all that time, so the tokens that it computed over that time are its speed. If the
metrics count them, this includes tokens that it computed although they were expected in its cache.

A prompt that comes and goes between two scrapes seems to take half an interval, so differences
between endpoints may seem smaller than they are. Short prompts say little about the speed, and do
not count. A busy endpoint also decodes, and then computes prompts more slowly. This is part of its
speed, as requests that are sent there will notice it.

If engines count their own times, these are more exact (`extproc.core.fleet.engine_times`). While
all prompts are short, their time is not known, and the time of a step gives the speed. If no engine
counts them, as with several engines behind one port, a new endpoint has the speed of all endpoints
together until its own is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import median

from extproc.core.fleet.engine_times import EngineTimes

LEAST_TOKENS = 300.0
"""Mean tokens of the prompts of a busy period that counts."""

PROMPT_TOKENS = 500.0
"""Tokens that each prompt counts as besides its own, because a step of an engine has a least
duration."""

FIRST_PERIODS = 3.0
"""Busy periods, of which the older count less, after which a speed is known."""

LEAST_PERIODS = 20.0
"""The same, after which speeds are compared: a difference may be chance for longer."""

LEAST_RATIO = 1.35
"""Ratio to the median speed up to which a difference may be chance."""

MOST_RATIO = 4.0
"""Highest ratio to the median speed that is believed."""

_STEP_TOKENS = 200.0
"""Prompt tokens that count as long as a step while no prompt shows the speed. In the laboratory's
profiles, the base of a step takes the time of 70 to 230 tokens, and measured steps are longer,
because of contexts. With 150 or 300, simulated mean TTFT is the same within 1 %."""

_LONG_PROMPT = 1_000.0
"""Tokens of a long prompt."""

_KEPT = 0.98
"""Weight that earlier periods keep with each new one: about fifty count."""


class _Busy:
    """An endpoint's busy period, and the sums of those before it."""

    __slots__ = (
        *("computed", "observed_at", "periods", "prompts"),
        *("seconds", "since", "tokens", "total"),
    )

    def __init__(self, now: float) -> None:
        self.observed_at = now
        self.since: float | None = None
        self.total: float | None = None
        self.computed = 0.0
        self.prompts = 0
        self.periods = 0.0
        self.seconds = 0.0
        self.tokens = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Add a period, and let those before it count less."""
        self.periods = self.periods * _KEPT + 1
        self.seconds = self.seconds * _KEPT + seconds
        self.tokens = self.tokens * _KEPT + tokens


class Speeds:
    """Speeds by endpoint address; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], engine_times: EngineTimes | None = None) -> None:
        self.clock = clock
        self._engine_times = engine_times or EngineTimes()
        self._busy: dict[str, _Busy] = {}
        self._all = _Busy(clock())
        """The busy periods of all endpoints."""

    def began(self, address: str) -> None:
        """Record that an endpoint has a prompt to compute, after it had none."""
        now = self.clock()
        busy = self._busy.get(address)
        if busy is None:
            busy = self._busy[address] = _Busy(now)
        if busy.since is None:
            busy.since = now

    def computed(self, address: str, tokens: float) -> None:
        """Record that an endpoint has computed a prompt of probably this number of tokens."""
        busy = self._busy[address]
        busy.computed += tokens
        busy.prompts += 1

    def observed(self, address: str, *, is_busy: bool, total: float | None = None) -> None:
        """Record a scrape, after which all prompts that it shows as computed are recorded.

        `is_busy` means that others remain. `total` are all tokens that the engine has computed, if
        its metrics say so.
        """
        busy = self._busy.get(address)
        if busy is None:
            return
        now = self.clock()
        before, busy.observed_at = busy.observed_at, now
        if busy.since is not None and is_busy and not busy.prompts:
            return  # a long prompt is not complete
        if busy.since is not None:
            seconds = now - busy.since
            if not is_busy:  # it ended at some time after the scrape before
                seconds -= (now - max(busy.since, before)) / 2
            self._add(busy, seconds, total)
        busy.since = now if is_busy else None
        busy.total, busy.computed, busy.prompts = total, 0.0, 0

    def slowness(self, addresses: Sequence[str]) -> Mapping[str, float]:
        """Return the time of each endpoint over the median endpoint's, if it clearly differs."""
        times = {
            address: busy.seconds / busy.tokens
            for address in addresses
            if (busy := self._busy.get(address)) and busy.periods >= LEAST_PERIODS
        }
        if len(times) < 2:
            return {}
        usual = median(times.values())
        return {
            address: min(max(time / usual, 1 / MOST_RATIO), MOST_RATIO)
            for address, time in times.items()
            if not usual / LEAST_RATIO < time < usual * LEAST_RATIO
        }

    def seconds(self, address: str, prompts: int, tokens: float) -> float:
        """Return the time that an endpoint takes for prompts with so many tokens together.

        It is infinite while neither the speed nor the time of a step is known.
        """
        times = self._engine_times.own(address)
        if times.token < inf:
            return prompts * times.step + tokens * times.token
        busy = self._known(address)
        if busy is not None:
            return (tokens + PROMPT_TOKENS * prompts) * busy.seconds / busy.tokens
        return (prompts + tokens / _STEP_TOKENS) * times.step if times.step < inf else inf

    def tokens(self, address: str, seconds: float) -> float:
        """Return the tokens of a long prompt that an endpoint computes in this time.

        There are none while neither the speed nor the time of a step is known.
        """
        if not seconds:
            return 0.0
        return seconds * _LONG_PROMPT / self.seconds(address, 1, _LONG_PROMPT)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._busy.pop(address, None)

    def _known(self, address: str) -> _Busy | None:
        """Return the busy periods of an endpoint, or those of all; None if there are too few.

        If engines count their times, two scrapes show an endpoint's own, and those of all do not
        count: on 40 random trials, mean TTFT would be 0.1 % shorter, but 5 % longer on one mixed
        fleet.
        """
        busy = self._busy.get(address)
        if busy is not None and busy.periods >= FIRST_PERIODS:
            return busy
        is_usable = not self._engine_times.are_counted and self._all.periods >= FIRST_PERIODS
        return self._all if is_usable else None

    def _add(self, busy: _Busy, seconds: float, total: float | None) -> None:
        """Add a period that is over, unless its prompts were short."""
        tokens = busy.computed
        if total is not None and busy.total is not None:
            tokens = total - busy.total
        if seconds > 0 and tokens >= LEAST_TOKENS * busy.prompts > 0:
            for one in (busy, self._all):
                one.add(tokens + PROMPT_TOKENS * busy.prompts, seconds)
