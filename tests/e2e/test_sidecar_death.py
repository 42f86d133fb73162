"""What dies with the sidecar: no request and no stream."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

from extproc.lab.processes import until
from tests.e2e.scene import Launch, Options, Scene, chat, events

CLIENTS = 40
TOKENS = 15


async def client(scene: Scene, name: int, stop: asyncio.Event, outcomes: Counter[str]) -> None:
    """Streams one chat after the other, and counts how each ended."""
    while not stop.is_set():
        tokens, last = 0, ""
        async with scene.stream(chat(f"client {name}", tokens=TOKENS)) as response:
            if response.status == 200:
                async for data in events(response):
                    tokens, last = tokens + ('"content"' in data), data
        whole = response.status == 200 and last == "[DONE]" and tokens >= TOKENS
        outcomes["whole" if whole else f"{response.status} after {tokens} tokens"] += 1


async def test_killed_under_load_and_restarted_nothing_fails_and_decisions_resume(
    launch: Launch,
) -> None:
    scene = await launch(Options(replica_arguments=("--time-scale", "4")))
    stop, outcomes = asyncio.Event(), Counter[str]()
    clients = [asyncio.create_task(client(scene, i, stop, outcomes)) for i in range(CLIENTS)]
    await asyncio.sleep(0.5)
    for _ in range(2):
        await scene.sidecar.kill()
        await asyncio.sleep(0.7)
        await scene.sidecar.start()
        await asyncio.sleep(1)
    stop.set()
    await asyncio.gather(*clients)
    assert outcomes["whole"] > 3 * CLIENTS
    assert outcomes.keys() == {"whole"}
    lines = await scene.access_log(outcomes.total())
    routes = Counter(line["route"] for line in lines)
    assert routes["chosen"] > CLIENTS
    assert routes["fallback"] > 0
    decided = await scene.send(chat("and now?"))
    assert decided.status == 200
    assert (await scene.access_log(len(lines) + 1))[-1]["route"] == "chosen"
    await scene.agree_on_inflight(0)


async def test_a_frozen_sidecar_delays_requests_once_and_harms_no_stream(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=("--time-scale", "2")))
    async with scene.stream(chat("long", tokens=80)) as running:
        await until(lambda: running.status == 200, 5, "the stream")
        scene.sidecar.signal(signal.SIGSTOP)
        replies = await asyncio.gather(*(scene.send(chat(f"user {i}")) for i in range(10)))
        assert {reply.status for reply in replies} == {200}
        scene.sidecar.signal(signal.SIGCONT)
        assert (await running.read()).endswith(b"data: [DONE]\n\n")
    assert (await scene.send(chat("after"))).status == 200
    assert (await scene.access_log(12))[-1]["route"] == "chosen"
    await scene.agree_on_inflight(0)
