from __future__ import annotations

from collections.abc import Sequence

import pytest

from extproc.core.fleet.totals import Total
from extproc.core.strategies.crowding import waiting_prompts


def loads(backlogs: Sequence[float]) -> list[Total]:
    """Return the loads of endpoints with these tokens to compute."""
    found = []
    for backlog in backlogs:
        load = Total()
        load.backlog = backlog
        found.append(load)
    return found


@pytest.mark.parametrize(
    ("backlogs", "waiting"),
    [
        ([24_000], 2),
        ([8_000], 0),  # the engine computes this one
        ([24_000, 0], 0),  # of two endpoints, both must have a queue
        ([24_000, 16_000], 1),
        ([90_000, 24_000, 0], 2),
        ([90_000, 90_000, 24_000, 0, 0], 2),
        ([90_000, 90_000, 0, 0], 0),
    ],
)
def test_prompts_wait_that_the_median_endpoint_does_not_compute_yet(
    backlogs: Sequence[float], waiting: float
) -> None:
    assert waiting_prompts(loads(backlogs), mean_tokens=8_000) == waiting


def test_several_short_prompts_wait_as_one() -> None:
    assert waiting_prompts(loads([12_000]), mean_tokens=100) == 2
