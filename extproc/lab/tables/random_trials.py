"""Random trials: workloads and fleets drawn within stated ranges, each from its own number.

A rule that was tuned on the scenes of the page has not seen them. The ranges are:

- kind and sizes: each kind in turn, sizes as in `extproc.lab.tables.random_kinds`
- fleet: 4 to 64 engines (agents: 4 to 20) of one, two or three kinds by turns, of H100, A100 and
  L40S; L4s of one kind, for contexts below 30,000 tokens
- load: 40 to 95 % of the fleet's estimated capacity, in one of six trials 100 to 120 %
- arrivals: Poisson, or in one of four trials bursts with a coefficient of variation of 2 or 3, or
  2 to 10 sessions at once
- engines: in one of ten trials without chunked prefill, in one of ten with at most 512 prompt
  tokens in a step that decodes
- events: in one of six trials an engine dies after a third of the run and returns
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from extproc.lab.engine import profile
from extproc.lab.engine.profile import Profile
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.events import Event, Join, Leave
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.simulation import simulate
from extproc.lab.tables.capacity import Capacity, capacity
from extproc.lab.tables.contenders import Contender
from extproc.lab.tables.random_kinds import CLOSED, KINDS
from extproc.lab.workloads.drawn import Shape, sessions
from extproc.lab.workloads.lengths import log_uniform
from extproc.lab.workloads.workload import Session, Workload

_LARGE = tuple(f"{gpu}-llama-3.1-8b" for gpu in ("h100", "a100", "l40s"))
_SMALL = "l4-llama-3.1-8b-fp8"
_SMALL_TOKENS = 30_000
_MOST_TOKENS = 100_000
_SECONDS_BETWEEN_STARTS = 0.5


class RandomTrial(NamedTuple):
    """A workload on a fleet."""

    number: int
    kind: str
    load: float
    """Share of the estimated capacity."""

    workload: Workload
    engine: Profile
    others: Mapping[int, Profile]
    """Profiles of engines that differ from `engine`, by number."""

    events: Sequence[Event]

    @property
    def description(self) -> str:
        """Its kind, load and fleet, in one line."""
        names = {one.name: None for one in (self.engine, *self.others.values())}
        fleet = f"{self.workload.replicas} x {' / '.join(names)}"
        return f"{self.number}: {self.kind} at {self.load:.0%} on {fleet}"


class Sidecars(NamedTuple):
    """The sidecars before a fleet. Each request goes to a random one."""

    number: int
    share: float | None = None
    """Seconds after which they know each other's requests; None if they share nothing."""


ONE = Sidecars(1)


def random_trial(number: int) -> RandomTrial:
    """Draw a trial. The number determines everything."""
    rng = Random(f"remote trial/{number}")
    kind = list(KINDS)[number % len(KINDS)]
    shape = KINDS[kind](rng)
    fleet = _fleet(rng, kind, shape)
    most = min(_MOST_TOKENS, min(one.kv_tokens for one in fleet) // 2)
    mean_turns = sum(shape.turns) / 2
    requests = max(1_000, min(2_400, 50 * len(fleet)))
    drawn = sessions(shape, max(20, round(requests / mean_turns)), rng, most)
    load = rng.uniform(1.0, 1.2) if rng.random() < 1 / 6 else rng.uniform(0.4, 0.95)
    workload = Workload(f"random {number}", drawn, replicas=len(fleet))
    able = capacity(workload, shape, fleet)
    arriving = (_closed if kind in CLOSED else _open)(rng, workload, shape, able, load)
    return RandomTrial(
        number=number,
        kind=kind,
        load=load,
        workload=arriving,
        engine=fleet[0],
        others={place: one for place, one in enumerate(fleet) if one != fleet[0]},
        events=_events(rng, arriving, able, load),
    )


def scenario(trial: RandomTrial, contender: Contender, sidecars: Sidecars = ONE) -> Scenario:
    """Return the scenario of a trial for a contender."""
    usual = Scenario.of(
        trial.workload,
        trial.engine,
        contender.load_balancing,
        seed=trial.number,
        published_rule=contender.published_rule,
    )
    return replace(
        usual,
        others=trial.others,
        events=trial.events,
        sidecars=sidecars.number,
        share=sidecars.share,
    )


def run(number: int, contender: Contender, sidecars: Sidecars = ONE) -> Summary:
    """Draw a trial, simulate it for a contender and return the figures."""
    return summarize(simulate(scenario(random_trial(number), contender, sidecars)))


def _fleet(rng: Random, kind: str, shape: Shape) -> list[Profile]:
    """Return the profile of each engine."""
    number = log_uniform(rng, 4, 20 if kind == "agents" else 64)
    mean_turns = sum(shape.turns) / 2
    growth = mean_turns * (shape.message_tokens + shape.answer_tokens)
    is_small = shape.prefix_tokens + growth < _SMALL_TOKENS and rng.random() < 0.5
    names = [_SMALL] if is_small else rng.sample(_LARGE, rng.choice([1, 1, 2, 3]))
    changes = _changes(rng)
    kinds = [replace(profile.named(name), **changes) for name in names]
    return [kinds[place % len(kinds)] for place in range(number)]


def _changes(rng: Random) -> dict[str, Any]:
    drawn = rng.random()
    if drawn < 0.1:
        return {"chunked_prefill": False}
    return {"max_prompt_tokens_with_decoding": 512} if drawn < 0.2 else {}


def _open(rng: Random, workload: Workload, shape: Shape, able: Capacity, load: float) -> Workload:
    """Return the workload with a rate."""
    turns = workload.requests / len(workload.sessions)
    bursts = rng.random() < 0.25
    return replace(
        workload,
        requests_per_second=load * able.requests_per_second / turns,
        burstiness=rng.choice([1.0, 1 / 4, 1 / 9]) if bursts else 1.0,
        at_once=rng.randint(2, 10) if bursts and rng.random() < 0.5 else 1,
    )


def _closed(rng: Random, workload: Workload, shape: Shape, able: Capacity, load: float) -> Workload:
    """Return the workload with as many sessions at a time as the load needs.

    Their contexts fill the same share of the caches at most, and at least 1.5 rounds are run.
    """
    wanted = load * able.requests_per_second * (shape.think_seconds + able.response_seconds)
    most = min(load * able.contexts, len(workload.sessions) / 1.5)
    started = [
        Session(session.turns, place * _SECONDS_BETWEEN_STARTS if shape.think_seconds else 0.0)
        for place, session in enumerate(workload.sessions)
    ]
    return replace(workload, sessions=started, concurrency=max(2, round(min(wanted, most))))


def _events(rng: Random, workload: Workload, able: Capacity, load: float) -> list[Event]:
    if rng.random() >= 1 / 6:
        return []
    seconds = workload.requests / able.requests_per_second / min(1.0, load)
    number = rng.randrange(workload.replicas)
    return [Leave(seconds / 3, number), Join(seconds / 2, number)]
