"""The prompts that wait on most endpoints, for PrefixCache's costs."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.fleet.totals import Total

_WAITING_PROMPT = 4000.0
"""Tokens to compute that a prompt that waits counts as at least: an engine computes several short
prompts in one step."""


def waiting_prompts(loads: Sequence[Total], mean_tokens: float) -> float:
    """Return the number of prompts that wait on the median endpoint; 0 if it has at most one.

    The one that it computes does not count. `mean_tokens` is the mean size of a prompt. Single
    endpoints with a long queue do not count: the next prompts can go elsewhere. The lower median
    counts, so of two endpoints both must have a queue. A full KV cache is in the backlog, so it
    counts as prompts, too.
    """
    usual = max(mean_tokens, _WAITING_PROMPT)
    longer = sorted([load.backlog for load in loads if load.backlog > usual])
    shorter, median = len(loads) - len(longer), (len(loads) - 1) // 2
    return longer[median - shorter] / usual - 1 if median >= shorter else 0.0
