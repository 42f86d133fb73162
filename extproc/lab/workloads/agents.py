"""Coding agents: one system prompt for all, then long sessions of many short steps.

Published: TraceLab (tracelab.cs.washington.edu, University of Washington, 2026) recorded 357,161
steps of Claude Code and Codex in 4,265 sessions. They have 54.9 billion prompt tokens, of which
52.6 billion were cached, and 187 million output tokens. So the mean step has 520 output tokens,
the ratio of prompt to output is 290 to 1, and 96 % of the prompt is cached. Manus reports 100 to 1
for its agents (manus.im, "Context Engineering for AI Agents", 2025).

Assumed: all other lengths and times here. The mean step has about 400 output tokens and 150 times
as many prompt tokens, which lies between the two.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

CONCURRENCIES = (20, 40)

SYSTEM_TOKENS = 12_000
"""System prompt and tools, the same for all sessions."""

LEAST_TURNS, MOST_TURNS = 20, 60
LEAST_NEW_TOKENS, MOST_NEW_TOKENS = 1_000, 4_000
"""Tokens that a turn adds to the context, including the response before it."""

MOST_CONTEXT_TOKENS = 150_000
"""Compaction rewrites the history before it would exceed this, including the response."""

LEAST_THINK_SECONDS, MOST_THINK_SECONDS = 2.0, 20.0

PROFILE = "h100-llama-3.1-8b"
"""Its cache of 448,000 tokens holds three of the longest contexts, and seven of the mean one. A
fleet of eight holds the sessions of both workloads if they have few copies. Llama 3.1 itself ends
at 131,072 tokens: the profile stands for a model of that size with a longer limit.
"""

_SYSTEM = Segment("agents/system", SYSTEM_TOKENS, "system")


def agents(concurrency: int, seed: int = 0, pace: float = 1.0) -> Workload:
    """Return sessions of 20 to 60 turns, `concurrency` at a time.

    Each sends its whole history with every turn. Between two turns a tool runs, for 2 to 20
    seconds. `pace` 2 halves these pauses.
    """
    rng = Random(f"agents/{seed}")
    return Workload(
        name=f"agents-{concurrency}",
        sessions=[
            # At most one a second, so that the first prompts do not arrive at once.
            Session(session_turns(rng, f"agents/{number}", pace), number / pace)
            for number in range(_SESSIONS[concurrency])
        ],
        concurrency=concurrency,
        profile=PROFILE,
    )


_SESSIONS = {20: 50, 40: 64}
"""Sessions that keep all slots busy for most of the run, and a simulation short."""


class _History(NamedTuple):
    """A session's context before the next message."""

    segments: tuple[Segment, ...]
    answer_tokens: int

    @property
    def tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)


def session_turns(rng: Random, name: str, pace: float) -> list[Turn]:
    """Return the turns of one session, with the system prompt of all."""
    turns: list[Turn] = []
    history = _History((_SYSTEM,), 0)
    for number in range(rng.randint(LEAST_TURNS, MOST_TURNS)):
        new = rng.randint(LEAST_NEW_TOKENS, MOST_NEW_TOKENS)
        answer = log_normal(rng, mean=400, sigma=0.8, least=30, most=2_000)
        if history.tokens + new + answer > MOST_CONTEXT_TOKENS:
            compaction = _compaction(rng, f"{name}/{number}", history, pace)
            turns.append(compaction)
            history = _History((_SYSTEM, compaction.output._replace(role="user")), 0)
        message = Segment(f"{name}/{number}", max(8, new - history.answer_tokens))
        output = Segment(f"{name}/{number}/answer", answer, "assistant")
        prompt = (*history.segments, message)
        turns.append(Turn(prompt, output, think_seconds=pause(rng, pace) if turns else 0.0))
        history = _History((*prompt, output), answer)
    return turns


def _compaction(rng: Random, name: str, history: _History, pace: float) -> Turn:
    """Return the request for a summary of the history.

    The next prompt consists of system prompt, summary and message, so only the system prompt is
    still cached.
    """
    instruction = Segment(f"{name}/compact", 500)
    summary = Segment(f"{name}/summary", rng.randint(2_000, 4_000), "assistant")
    return Turn((*history.segments, instruction), summary, think_seconds=pause(rng, pace))


def pause(rng: Random, pace: float) -> float:
    """Return the seconds that a tool runs: 6 at the median."""
    drawn = rng.lognormvariate(1.8, 0.7)
    return min(MOST_THINK_SECONDS, max(LEAST_THINK_SECONDS, drawn)) / pace
