"""The differences between the GPUs of a mixed fleet, for PrefixCache's costs.

Prompts and steps take longer on some GPUs. This also concerns the later turns of a session, because
they come to the endpoint that has its history. If only the next turn counted, a session would stay
on a slow endpoint, because one turn costs less there than its history costs elsewhere. So the turns
that are expected to follow count, too. A turn counts as a usual prompt of the fleet.

An endpoint without requests has unknown times, and they stay unknown until it gets requests. So
while it is idle, it counts as the fastest of the others. After some requests, and while it is not
idle, it counts as their mean.

Sidecars that share no state expect a prompt on its home endpoints. A fast endpoint is the home of
more prompts than a slow one, as with weighted consistent hashing. In proportion to its speed would
be too few, because a busy fast endpoint still responds sooner than a slow one. A few fast endpoints
among many slow ones would get too many, so a bound limits them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from extproc.core.fleet.signals import Signals

_MOST_CONTINUED = 0.8
"""Highest share of turns with a further one that is believed. Then four more turns follow: those
after them are uncertain."""

_PREFERENCE = 3
"""Exponent of the speed in the share of home prompts. On 39 random trials of mixed fleets behind
four sidecars, mean TTFT is 7 % shorter with 1 than if all endpoints are the home of equally many
prompts, 10 % with 2, and 12 % with 3 and 5."""

_BOUND = 1.25
"""Share of the fastest endpoint among all, at most, as a multiple of its share of the fleet's
speed. KubeAI's default bound is the same multiple of the mean load. A single fast endpoint is the
home of somewhat more, because it gets most of what the slow ones before it pass on. With this
bound, those 12 % are 10 %. But if one endpoint of eight is an H100 and the others are L40S, mean
TTFT is 49 % shorter than without it (agents-20, two seeds)."""


class GpuFactors(NamedTuple):
    """The differences between endpoints, by position."""

    prompts: list[float]
    """The time of a usual prompt, divided by that on the median endpoint."""

    steps: list[float]
    """The time of a step without prompts, divided by that on the median endpoint."""

    copies: list[float]
    """Factor of the tokens that a copy saves, at most 1. A copy takes longer to compute on a slow
    endpoint, and fewer requests use it there."""

    turns: list[float]
    """Additional cost of a session's later turns compared with the cheapest endpoint, in prompt
    tokens of a usual endpoint; empty if all endpoints are equally fast."""

    home_shares: dict[str, float]
    """Number of prompts whose home an endpoint is, by address, divided by that of the fastest one;
    empty if all endpoints are equally fast, or times of some are unknown."""

    unknown: list[int]
    """Endpoints with unknown times; empty if the known ones are alike."""


def gpu_factors(
    signals: Signals, addresses: Sequence[str], step: float, evicting: Iterable[int]
) -> GpuFactors:
    """Return the present factors.

    `step` is the time of a step in prompt tokens. On the endpoints `evicting`, a session may lose
    its history before its next turn. So its later turns cost as much there as on the slowest one.
    """
    slowness = signals.slowness(addresses)
    prompts = [slowness.prompts.get(one, 1.0) for one in addresses]
    steps = [slowness.steps.get(one, 1.0) for one in addresses]
    turns, home_shares = list[float](), dict[str, float]()
    if slowness.prompts:
        tokens = signals.backlog.mean
        costs = [p * tokens + s * step for p, s in zip(prompts, steps, strict=True)]
        slowest = max(costs)
        for position in evicting:
            costs[position] = slowest
        expected, least = _expected_turns(signals.contexts.continued), min(costs)
        turns = [expected * (cost - least) for cost in costs]
        if not slowness.unknown:  # otherwise they would change as soon as the times are known
            home_shares = dict(zip(addresses, _home_shares(prompts), strict=True))
    return GpuFactors(
        prompts,
        steps,
        copies=[min(1.0, 1 / factor) for factor in prompts],
        turns=turns,
        home_shares=home_shares,
        unknown=[position for position, one in enumerate(addresses) if one in slowness.unknown],
    )


def _home_shares(prompts: Sequence[float]) -> Iterator[float]:
    """Yield the share of prompts that each endpoint keeps as their home; the fastest keeps all.

    It is between the speed and its cube, so that the fastest endpoint does not get too many.
    """
    fastest = min(prompts)
    speeds = [fastest / factor for factor in prompts]
    preferred = [speed**_PREFERENCE for speed in speeds]
    together, least = sum(speeds), sum(preferred)
    weight = 1.0
    if least * _BOUND < together:
        weight = (together - together / _BOUND) / (together - least)
    for speed, share in zip(speeds, preferred, strict=True):
        yield weight * share + (1 - weight) * speed


def _expected_turns(continued: float) -> float:
    """Return the number of turns that follow if this share of turns has a further one."""
    share = min(continued, _MOST_CONTINUED)
    return share / (1 - share)
