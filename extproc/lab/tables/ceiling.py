"""The hit rate of an unlimited cache: an upper bound for every strategy."""

from __future__ import annotations

from itertools import takewhile

from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.workloads.workload import Turn, Workload


def ceiling(workload: Workload, block_size: int) -> float:
    """Return the share of prompt tokens that one unlimited cache for all engines would have.

    Each prompt finds the whole blocks of earlier prompts and responses, without its own last token,
    as in vLLM. Sessions run one after another in the workload's order. The first one misses the
    text that it shares with the others, so the sum hardly depends on the order.
    """
    ids = BlockIds(block_size)
    seen: set[int] = set()
    for turn in workload.before.turns:
        seen.update(_computed(ids, turn, block_size))
    found = asked = 0
    for turn in workload.measured.turns:
        blocks = _computed(ids, turn, block_size)
        most = (turn.prompt_tokens - 1) // block_size
        found += block_size * sum(1 for _ in takewhile(seen.__contains__, blocks[:most]))
        asked += turn.prompt_tokens
        seen.update(blocks)
    return found / asked if asked else 0.0


def _computed(ids: BlockIds, turn: Turn, block_size: int) -> list[int]:
    """Return the blocks of prompt and response without the last token, which is not computed."""
    whole = (turn.prompt_tokens + turn.output.tokens - 1) // block_size
    return ids.of(turn)[:whole]
