"""A hot prefix on a large fleet with cold caches: a launch, or a new version of a system prompt.

All lengths and rates are assumptions.
"""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload, conversation

PREFIX_TOKENS = 40_000
"""An H100 computes it in 1.7 s. In each step of a decoding request, reading it takes 2 ms."""

REQUESTS = {64: 4_000, 200: 5_000}
"""Requests by the number of engines."""

REQUESTS_PER_SECOND_AND_ENGINE = 2.4
"""Rate at `pace` 1.

An engine with the prefix and n requests needs 7 + 2 n ms for a step, and 100 steps and some 5 ms
for a request: it serves 3.4 requests a second with 8 at a time, and never more than 5. At this rate
it has 3 or 4 at a time, and a few engines cannot serve all.
"""

CONVERSATIONS = 700
LEAST_TURNS, MOST_TURNS = 3, 9
_PROFILE = "h100-llama-3.1-8b"
_PREFIX = Segment("hot-fleet/system", PREFIX_TOKENS, "system")


def hot_fleet(engines: int, seed: int = 0, pace: float = 1.0) -> Workload:
    """Return short questions behind one prefix of 40,000 tokens, at random times."""
    rng = Random(f"hot-fleet/{seed}")
    return Workload(
        name=f"hot-fleet-{engines}",
        sessions=[
            Session(_turns(rng, f"hot-fleet/{number}", 1)) for number in range(REQUESTS[engines])
        ],
        requests_per_second=REQUESTS_PER_SECOND_AND_ENGINE * engines * pace,
        replicas=engines,
        profile=_PROFILE,
    )


def hot_fleet_chat(engines: int, seed: int = 0, pace: float = 1.0) -> Workload:
    """Return 700 conversations of 3 to 9 turns behind that prefix.

    The rate of requests is the same. Each user thinks for some 5 s. `pace` only scales the rate
    of new conversations.
    """
    rng = Random(f"hot-fleet-chat/{seed}")
    mean_turns = (LEAST_TURNS + MOST_TURNS) / 2
    return Workload(
        name=f"hot-fleet-{engines}-chat",
        sessions=[
            Session(_turns(rng, f"hot-fleet/{number}", rng.randint(LEAST_TURNS, MOST_TURNS)))
            for number in range(CONVERSATIONS)
        ],
        requests_per_second=REQUESTS_PER_SECOND_AND_ENGINE * engines / mean_turns * pace,
        replicas=engines,
        profile=_PROFILE,
    )


def _turns(rng: Random, name: str, turns: int) -> list[Turn]:
    messages = [log_normal(rng, mean=100, sigma=0.8, least=8, most=1_000) for _ in range(turns)]
    answers = [log_normal(rng, mean=100, sigma=0.6, least=8, most=400) for _ in range(turns)]
    return [
        turn._replace(think_seconds=rng.lognormvariate(1.4, 0.7) if place else 0.0)
        for place, turn in enumerate(conversation(name, (_PREFIX,), messages, answers))
    ]
