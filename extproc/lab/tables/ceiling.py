"""The most that a workload's prompts have in common: what a cache without an end would find."""

from __future__ import annotations

from itertools import takewhile

from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.workloads.workload import Turn, Workload


def ceiling(workload: Workload, block_size: int) -> float:
    """The share of prompt tokens that one cache, shared by all and never full, would have.

    Each prompt finds what prompts and answers before it have left, in whole blocks and without
    its own last token, as in vLLM. Sessions come in the order of the workload, their turns
    one after the other: whichever comes first misses what it shares with the rest, and the sum
    hardly depends on who that is.
    """
    ids = BlockIds(block_size)
    seen: set[int] = set()
    for session in workload.before.sessions:
        for turn in session.turns:
            seen.update(_computed(ids, turn, block_size))
    found = asked = 0
    for session in workload.measured.sessions:
        for turn in session.turns:
            blocks = _computed(ids, turn, block_size)
            most = (turn.prompt_tokens - 1) // block_size
            found += block_size * sum(1 for _ in takewhile(seen.__contains__, blocks[:most]))
            asked += turn.prompt_tokens
            seen.update(blocks)
    return found / asked if asked else 0.0


def _computed(ids: BlockIds, turn: Turn, block_size: int) -> list[int]:
    """The blocks of prompt and answer; an answer's last token is never computed."""
    whole = (turn.prompt_tokens + turn.output.tokens - 1) // block_size
    return ids.of(turn)[:whole]
