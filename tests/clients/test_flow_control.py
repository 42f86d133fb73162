"""SDKs wait, retry and read errors as they do with the original APIs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.clients import sdks
from tests.clients.sdk import asked, async_client, claude, joined
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


async def test_a_request_that_waits_succeeds_later(scene: Scene) -> None:
    async with AsyncExitStack() as held, async_client(scene) as gpt:
        await hold(scene, held)
        waiting = asyncio.create_task(gpt.chat.completions.create(**asked("hello")))
        await scene.agree_on_queue(1)
        assert not waiting.done()
        await held.aclose()
        assert (await waiting).choices[0].message.content


async def test_streams_that_wait_are_only_late(scene: Scene) -> None:
    async with AsyncExitStack() as held, async_client(scene) as gpt:
        await hold(scene, held)
        streamed = gpt.chat.completions.create(**asked("hello"), stream=True)
        waiting = asyncio.create_task(streamed)
        await scene.agree_on_queue(1)
        await held.aclose()
        chunks = [chunk async for chunk in await waiting]
        assert joined(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)

    def stream() -> str:
        with claude(scene) as anthropic, anthropic.messages.stream(**asked("hello")) as events:
            return "".join(events.text_stream)

    async with AsyncExitStack() as held:
        await hold(scene, held)
        text = asyncio.create_task(asyncio.to_thread(stream))
        await scene.agree_on_queue(1)
        await held.aclose()
        assert await text


async def test_a_wait_that_is_too_long_is_an_error_that_sdks_retry(scene: Scene) -> None:
    brief = {"x-request-timeout-ms": "300"}
    async with AsyncExitStack() as held, async_client(scene) as gpt:
        await hold(scene, held)
        with pytest.raises(sdks.openai.InternalServerError) as refused:
            await gpt.chat.completions.create(**asked("hello"), extra_headers=brief)
        assert (refused.value.status_code, refused.value.code) == (503, "queue_timeout")
        assert int(refused.value.response.headers["retry-after"]) >= 1

        def ask(retries: int) -> object:
            with claude(scene, max_retries=retries) as anthropic:
                return anthropic.messages.create(**asked("hello"), extra_headers=brief).content

        with pytest.raises(sdks.anthropic.InternalServerError) as overloaded:
            await asyncio.to_thread(ask, 0)
        assert overloaded.value.type == "overloaded_error"
        before = await timeouts(scene)
        retried = asyncio.create_task(asyncio.to_thread(ask, 5))
        while await timeouts(scene) == before:
            await asyncio.sleep(0.05)
        await held.aclose()
        assert await retried


async def timeouts(scene: Scene) -> float:
    """Return the number of requests that waited too long, or would have."""
    name = "extproc_requests_total"
    return await scene.metric(name, model="llama", strategy="none", outcome="queue_timeout")


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
