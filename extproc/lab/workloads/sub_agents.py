"""Coding agents whose sessions fork: sub-agents continue a copy of the context at the same time.

Published: TraceLab (see `agents`) counts 1.2 tool calls in a step on average, and 2 at the 90th
percentile. How often agents start sub-agents, and from which context, is an assumption.
"""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.agents import MOST_CONTEXT_TOKENS, PROFILE, pause, session_turns
from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Fork, Segment, Session, Turn, Workload

SESSIONS = 30
CONCURRENCY = 12
"""Sessions at a time, without their sub-agents."""

FORKING_SHARE = 0.06
"""Share of the turns that start sub-agents."""

MOST_CHILDREN = 4
"""Most sub-agents of a turn."""

LEAST_TURNS, MOST_TURNS = 3, 10
"""Turns of a sub-agent."""


def sub_agents(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return 30 sessions of coding agents, 12 at a time, whose turns start 1 to 4 sub-agents.

    The parent's next turn waits for all of them. `pace` 2 halves the pauses while tools run.
    """
    rng = Random(f"sub-agents/{seed}")
    return Workload(
        name="sub-agents",
        sessions=[_session(rng, number, pace) for number in range(SESSIONS)],
        concurrency=CONCURRENCY,
        profile=PROFILE,
    )


def _session(rng: Random, number: int, pace: float) -> Session:
    name = f"sub-agents/{number}"
    turns = session_turns(rng, name, pace)
    forks = [
        Fork(place, Session(_child(rng, f"{name}/{place}/{child}", turn, pace)))
        for place, turn in enumerate(turns[:-1])
        if rng.random() < FORKING_SHARE
        for child in range(rng.randint(1, MOST_CHILDREN))
    ]
    return Session(turns, number / pace, forks)


def _child(rng: Random, name: str, origin: Turn, pace: float) -> list[Turn]:
    """Return the turns of a sub-agent, which starts with the whole context of its parent."""
    turns: list[Turn] = []
    context = (*origin.prompt, origin.output)
    for number in range(rng.randint(LEAST_TURNS, MOST_TURNS)):
        message = Segment(f"{name}/{number}", rng.randint(500, 3_000))
        answer = log_normal(rng, mean=300, sigma=0.8, least=30, most=1_500)
        output = Segment(f"{name}/{number}/answer", answer, "assistant")
        turn = Turn((*context, message), output, think_seconds=pause(rng, pace) if turns else 0.0)
        if turns and turn.prompt_tokens + answer > MOST_CONTEXT_TOKENS:
            break
        turns.append(turn)
        context = (*turn.prompt, output)
    return turns
