from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from extproc.lab.engine.profile import named
from extproc.lab.engine.replica import Replica
from extproc.lab.stand_ins.engine_task import EngineTask

PROMPT, OUTPUT = 1_600, 16


async def test_times_to_first_token_are_never_below_those_of_the_steps() -> None:
    """Steps that make up for a delay of the process end early, but a GPU would not be faster."""
    replica = Replica(named("l4-llama-3.1-8b-fp8"))
    engine = EngineTask(replica, time_scale=100)
    running = asyncio.create_task(engine.run())
    size = replica.profile.block_size
    for first in (0, 1_000):
        blocks = range(first, first + (PROMPT + OUTPUT) // size)
        generation = engine.submit(PROMPT, OUTPUT, list(blocks))
        await generation.more()
        time.sleep(0.1)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    shortest = PROMPT / replica.profile.prefill_tokens_per_second / 100
    assert replica.first_token_seconds_total >= 2 * shortest
