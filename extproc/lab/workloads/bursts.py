"""Arrivals in bursts: chats with a high variation of pauses, and ten requests at one instant.

Published: BurstGPT (arXiv 2401.17644) models the arrivals of Azure's OpenAI services by gamma
distributions whose burstiness varies. The coefficient of variation of 3, the lengths and the rates
are assumptions.
"""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import geometric, log_normal, log_uniform
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload, conversation

VARIATION = 3.0
"""Coefficient of variation of the pauses between chats."""

CHATS = 1_200
CHATS_PER_SECOND = 6.0
APPLICATIONS = 20
"""System prompts of chats, and callers of `instants`."""

AT_ONCE = 10
INSTANTS = 200
INSTANTS_PER_SECOND = 1.0


def chat_bursts(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return 1,200 chats of 1 to 8 turns in bursts."""
    rng = Random(f"chat-bursts/{seed}")
    systems = [
        Segment(f"bursts/system/{number}", log_uniform(rng, 300, 2_000), "system")
        for number in range(APPLICATIONS)
    ]
    return Workload(
        name="chat-bursts",
        sessions=[Session(_chat(rng, number, rng.choice(systems))) for number in range(CHATS)],
        requests_per_second=CHATS_PER_SECOND * pace,
        burstiness=1 / VARIATION**2,
    )


def instants(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return 200 instants with ten requests each.

    The ten share a context, as when an application divides a task: half of the contexts are new,
    the others are one of 20.
    """
    rng = Random(f"instants/{seed}")
    known = [_context(rng, f"instants/known/{number}") for number in range(APPLICATIONS)]
    sessions: list[Session] = []
    for number in range(INSTANTS):
        is_new = rng.random() < 0.5
        context = _context(rng, f"instants/{number}") if is_new else rng.choice(known)
        sessions += [Session((_part(rng, f"{number}/{one}", context),)) for one in range(AT_ONCE)]
    return Workload(
        name="instants",
        sessions=sessions,
        requests_per_second=INSTANTS_PER_SECOND * AT_ONCE * pace,
        at_once=AT_ONCE,
    )


def _chat(rng: Random, number: int, system: Segment) -> list[Turn]:
    turns = 1 + geometric(rng, 2.5, 7)
    messages = [log_normal(rng, mean=200, sigma=1.2, least=8, most=4_000) for _ in range(turns)]
    answers = [log_normal(rng, mean=150, sigma=0.7, least=8, most=600) for _ in range(turns)]
    return [
        turn._replace(think_seconds=rng.lognormvariate(1.8, 0.8) if place else 0.0)
        for place, turn in enumerate(conversation(f"bursts/{number}", (system,), messages, answers))
    ]


def _context(rng: Random, name: str) -> Segment:
    return Segment(name, log_uniform(rng, 1_000, 6_000), "system")


def _part(rng: Random, name: str, context: Segment) -> Turn:
    task = Segment(f"instants/part/{name}", log_normal(rng, 150, 0.6, least=16, most=1_000))
    answer = log_normal(rng, mean=120, sigma=0.6, least=8, most=500)
    return Turn((context, task), Segment(f"instants/part/{name}/answer", answer, "assistant"))
