"""Coding agents: a few very long system prompts, each with many turns."""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import log_normal, log_uniform
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload, conversation

SESSIONS = 160
REPOSITORIES = 12
"""Number of shared system prompts, each with a repository."""

LEAST_SYSTEM_TOKENS, MOST_SYSTEM_TOKENS = 3_000, 100_000
LEAST_TURNS, MOST_TURNS = 2, 20
MOST_CONTEXT_TOKENS = 120_000
"""A session ends before it would exceed this, including the response."""

_CONCURRENCY = 40


def codegen(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return 160 sessions, 40 at a time; `pace` 2 halves the time between response and next
    request.

    It is not published; the lengths resemble agents' traffic. A message is a question or the output
    of a tool (800 tokens on average). A response is a remark with a change or a call (300). Between
    them tests run or a person thinks (15 s).

    An L4's cache (68k tokens) is too small for such a context.
    """
    rng = Random(f"codegen/{seed}")
    systems = [_system(rng, number) for number in range(REPOSITORIES)]
    return Workload(
        name="codegen",
        sessions=[
            # At most one a second, so that the first prompts do not arrive at once.
            Session(_turns(rng, number, rng.choice(systems), pace), number / pace)
            for number in range(SESSIONS)
        ],
        concurrency=_CONCURRENCY,
        profile="h100-llama-3.1-8b",
    )


def _system(rng: Random, number: int) -> Segment:
    # One value from each twelfth of the range, so that a few draws cover it.
    ratio = (MOST_SYSTEM_TOKENS / LEAST_SYSTEM_TOKENS) ** (1 / REPOSITORIES)
    least = LEAST_SYSTEM_TOKENS * ratio**number
    return Segment(f"repository/{number}", log_uniform(rng, least, least * ratio), "system")


def _turns(rng: Random, number: int, system: Segment, pace: float) -> list[Turn]:
    context = system.tokens
    messages: list[int] = []
    answers: list[int] = []
    for _ in range(rng.randint(LEAST_TURNS, MOST_TURNS)):
        message = log_normal(rng, mean=800, sigma=1.2, least=8, most=8_000)
        answer = log_normal(rng, mean=300, sigma=1.0, least=8, most=2_000)
        context += message + answer
        if context > MOST_CONTEXT_TOKENS:
            break
        messages.append(message)
        answers.append(answer)
    turns = conversation(f"session/{number}", (system,), messages, answers)
    return [
        turn._replace(think_seconds=rng.lognormvariate(2.2, 1.0) / pace if place else 0.0)
        for place, turn in enumerate(turns)
    ]
