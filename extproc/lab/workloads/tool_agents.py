"""Agents that call tools in short steps, as in ReAct: thought, call, observation.

The lengths, pauses and rates are assumptions.
"""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload, conversation

SESSIONS = 400
SESSIONS_PER_SECOND = 3.4
"""Rate at `pace` 1. It is a little more than eight L4s can serve, so that queues grow during the
run."""

KINDS = 8
"""Kinds of agents, each with its system prompt and tools. Three kinds have most of the sessions."""

LEAST_SYSTEM_TOKENS, MOST_SYSTEM_TOKENS = 1_500, 4_000
LEAST_STEPS, MOST_STEPS = 5, 15


def tool_agents(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return 400 sessions of 5 to 15 steps, at random times. `pace` scales their rate."""
    rng = Random(f"tool-agents/{seed}")
    systems = [
        Segment(f"tools/{kind}", rng.randint(LEAST_SYSTEM_TOKENS, MOST_SYSTEM_TOKENS), "system")
        for kind in range(KINDS)
    ]
    popularity = [1 / (kind + 1) for kind in range(KINDS)]
    kinds = rng.choices(systems, popularity, k=SESSIONS)
    return Workload(
        name="tool-agents",
        sessions=[Session(_steps(rng, number, system)) for number, system in enumerate(kinds)],
        requests_per_second=SESSIONS_PER_SECOND * pace,
    )


def _steps(rng: Random, number: int, system: Segment) -> list[Turn]:
    steps = rng.randint(LEAST_STEPS, MOST_STEPS)
    results = [log_normal(rng, mean=250, sigma=0.9, least=16, most=3_000) for _ in range(steps)]
    calls = [log_normal(rng, mean=80, sigma=0.6, least=10, most=400) for _ in range(steps)]
    turns = conversation(f"tools/session/{number}", (system,), results, calls)
    return [
        turn._replace(think_seconds=rng.lognormvariate(-0.5, 0.8) if place else 0.0)
        for place, turn in enumerate(turns)
    ]
