"""The kinds of GPUs in a fleet, by the times that its engines take.

A busy endpoint may have had long times only. This does not make it slow: GPUs of one kind have the
same times. Endpoints with about equally large caches are of one kind if a step or a prompt token
takes about as long on them. One of the two is enough, because all steps of a busy endpoint may have
been long. But if the times of a token differ by much, equal steps are chance. The shortest times of
all endpoints of a kind count for each. So an endpoint without requests is known, too, if all others
with such a cache are of one kind. If they are not, it counts as the mean of the known ones.

The times of prompt tokens depend less on the load, so they are compared first. Then the shortest
step of those with equal tokens is compared: a busy H100 may have the steps of an idle A100.

`extproc.core.fleet.engine_counters` finds the times of each engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import fmean, median
from typing import NamedTuple

from extproc.core.fleet.engine_counters import UNKNOWN, EngineCounters, Times
from extproc.core.fleet.report import Report

SAME_KIND = 1.25
"""Highest ratio between times of a step, or of a prompt token, on GPUs of one kind."""

SAME_ROOM = 1.05
"""The same for the sizes of their caches. Equal servers differ by a few blocks."""

MOST_BUSY = 2.5
"""Highest ratio between times of a prompt token on GPUs of one kind whose steps take about as long:
on a busy endpoint, prompts wait for others."""

MOST_RATIO = 4.0
"""Highest ratio to the median endpoint that is believed."""


class Slowness(NamedTuple):
    """The times of endpoints, as ratios to the median endpoint's.

    Both are empty if all known endpoints are of one kind.
    """

    prompts: Mapping[str, float]
    """The times of a usual prompt: GPUs differ in how fast they compute."""

    steps: Mapping[str, float]
    """The times of steps without prompts: GPUs differ in how fast they read their memory."""

    unknown: frozenset[str] = frozenset()
    """The endpoints that count as the mean of the others, because their times are unknown."""


class _Kind(NamedTuple):
    """Endpoints with the same GPU."""

    times: Times
    members: Sequence[str]

    def may_include(self, other: _Kind) -> bool:
        """Return True if endpoints with longer steps may be of this kind, but busier."""
        shorter, longer = sorted((self.times.token, other.times.token))
        same_tokens = longer == inf or longer <= MOST_BUSY * shorter
        return same_tokens and other.times.step <= SAME_KIND * self.times.step

    def with_slower(self, other: _Kind) -> _Kind:
        """Add endpoints that only seemed to be of another kind, because their steps were longer."""
        token = min(self.times.token, other.times.token)
        return _Kind(Times(self.times.step, token), [*self.members, *other.members])


class EngineTimes:
    """The times of engines by endpoint address."""

    def __init__(self) -> None:
        self._engines: dict[str, EngineCounters] = {}
        self.are_counted = False
        """True if an engine has counted the times of its steps."""

    def read(self, address: str, report: Report, in_prefill: float | None, now: float) -> None:
        """Take a reading of an endpoint with `in_prefill` requests without a first token.

        None means that their number is unknown.
        """
        self.are_counted |= report.steps is not None
        engine = self._engines.get(address)
        if engine is None:
            engine = self._engines[address] = EngineCounters()
        engine.read(report, in_prefill, now)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._engines.pop(address, None)

    def own(self, address: str) -> Times:
        """Return the shortest times of an endpoint itself; infinite if unknown.

        If it has always been busy, these may be longer than those of its kind.
        """
        engine = self._engines.get(address)
        return UNKNOWN if engine is None else engine.times

    def of(self, addresses: Iterable[str]) -> Mapping[str, Times]:
        """Return the times of the kinds of these endpoints, as far as they are known."""
        engines = self._engines
        rooms = sorted((engines[one].room, one) for one in addresses if one in engines)
        found = dict[str, Times]()
        for alike in _alike(rooms, SAME_ROOM):
            kinds = self._kinds(alike)
            for kind in kinds:
                found.update(dict.fromkeys(alike if len(kinds) == 1 else kind.members, kind.times))
        return found

    def slowness(self, addresses: Sequence[str], tokens: float) -> Slowness | None:
        """Return by how much the endpoints differ; None if no engine counts its times.

        `tokens` are those that a usual prompt has to compute. An endpoint with unknown times gets
        the mean of the others. Where only the time of a step is known, a prompt takes as many
        steps as on the others.
        """
        known = self.of(addresses)
        if not known:
            return None
        if len(set(known.values())) == 1:
            return Slowness({}, {})
        steps = _ratios({one: times.step for one, times in known.items()}, addresses)
        prompts = _ratios(_prompt_seconds(known, tokens), addresses)
        # The difference of a frozenset and keys is a set, which compiled code refuses.
        return Slowness(prompts, steps, frozenset([one for one in addresses if one not in known]))

    def _kinds(self, addresses: Iterable[str]) -> list[_Kind]:
        """Return the kinds of those endpoints whose steps are known; their caches are equal."""
        times = {one: self._engines[one].compared for one in addresses}
        steps = {one: known.step for one, known in times.items() if known.step < inf}
        tokens = sorted((times[one].token, one) for one in steps if times[one].token < inf)
        groups = _alike(tokens, SAME_KIND)
        groups += [[one] for one in steps if times[one].token == inf]
        kinds: list[_Kind] = []
        for step, group in sorted((min(steps[one] for one in group), group) for group in groups):
            kind = _Kind(Times(step, min(times[one].token for one in group)), group)
            for place, other in enumerate(kinds):
                if other.may_include(kind):
                    kinds[place] = other.with_slower(kind)
                    break
            else:
                kinds.append(kind)
        return kinds


def _prompt_seconds(known: Mapping[str, Times], tokens: float) -> dict[str, float]:
    """Return the seconds of a prompt with these tokens, in usual steps if no token is known."""
    each = {one: times.step + tokens * times.token for one, times in known.items()}
    steps = [each[one] / times.step for one, times in known.items() if times.token < inf]
    usual = median(steps) if steps else 1.0
    return {one: each[one] if each[one] < inf else usual * known[one].step for one in known}


def _ratios(seconds: Mapping[str, float], addresses: Sequence[str]) -> Mapping[str, float]:
    """Return the ratio to the median endpoint for each address."""
    usual = median(seconds.values())
    ratios = {
        address: min(max(each / usual, 1 / MOST_RATIO), MOST_RATIO)
        for address, each in seconds.items()
    }
    mean = fmean(ratios.values())
    return {address: ratios.get(address, mean) for address in addresses}


def _alike(endpoints: Sequence[tuple[float, str]], ratio: float) -> list[list[str]]:
    """Return groups of endpoints, which are sorted by a value.

    A group ends where the next value is larger by more than this ratio.
    """
    groups: list[list[str]] = []
    before = 0.0
    for value, address in endpoints:
        if not groups or value > ratio * before:
            groups.append([])
        groups[-1].append(address)
        before = value
    return groups
