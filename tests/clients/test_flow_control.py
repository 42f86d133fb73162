"""SDKs wait, retry and read errors as they do with the original APIs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.clients import sdks
from tests.clients.sdk import asked, async_client, claude
from tests.e2e.scene import Options, Scene, chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = Options(
    replicas=1,
    flow_control={"maxInflight": 1, "maxQueued": 1},
    replica_arguments=("--time-scale", "1"),
)


async def hold(scene: Scene, held: AsyncExitStack) -> None:
    """Use the only room until `held` ends."""
    body = chat("long", tokens=10_000, ignore_eos=True)
    await held.enter_async_context(scene.stream(body))
    await scene.agree_on_inflight(1)


async def test_a_request_that_waits_is_only_slow(scene: Scene) -> None:
    async with AsyncExitStack() as held, async_client(scene) as gpt:
        await hold(scene, held)
        waiting = asyncio.create_task(gpt.chat.completions.create(**asked("hello")))
        await scene.agree_on_queue(1)
        assert not waiting.done()
        await held.aclose()
        assert (await waiting).choices[0].message.content


async def test_a_full_queue_is_a_rate_limit_error(scene: Scene) -> None:
    async with AsyncExitStack() as held, async_client(scene) as gpt:
        await hold(scene, held)
        waiting = asyncio.create_task(gpt.chat.completions.create(**asked("hello")))
        await scene.agree_on_queue(1)
        with pytest.raises(sdks.openai.RateLimitError) as refused:
            await gpt.chat.completions.create(**asked("one too many"))
        assert refused.value.code == "queue_full"
        with claude(scene) as anthropic, pytest.raises(sdks.anthropic.RateLimitError):
            await asyncio.to_thread(lambda: anthropic.messages.create(**asked("one too many")))
        await held.aclose()
        await waiting


async def test_an_sdk_that_retries_succeeds_after_the_overload(scene: Scene) -> None:
    async with AsyncExitStack() as held, async_client(scene, max_retries=5) as gpt:
        await hold(scene, held)
        waiting = asyncio.create_task(gpt.chat.completions.create(**asked("hello")))
        await scene.agree_on_queue(1)
        refused = await scene.metric(
            "extproc_queue_refused_total", model="llama", reason="queue_full"
        )
        retried = asyncio.create_task(gpt.chat.completions.create(**asked("patient")))
        while refused == await scene.metric(
            "extproc_queue_refused_total", model="llama", reason="queue_full"
        ):
            await asyncio.sleep(0.05)
        await held.aclose()
        assert (await retried).choices[0].message.content
        await waiting
