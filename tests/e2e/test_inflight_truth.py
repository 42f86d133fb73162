"""The ledger's counts equal the requests on the replicas, for every way that requests end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import httpx
import pytest

from extproc.lab.stack.processes import free_port, until
from tests.e2e.scene import CHAT, Json, Launch, Options, Scene, chat
from tests.extent import PATIENCE

# Real speed: a token takes 41 ms, so that requests last long enough for a test.
SLOW = ("--time-scale", "1")


async def open_streams(
    scene: Scene, cleanup: AsyncExitStack, count: int, tokens: int
) -> list[aiohttp.ClientResponse]:
    bodies = (chat(f"user {i}", tokens=tokens) for i in range(count))
    return [await cleanup.enter_async_context(scene.stream(body)) for body in bodies]


async def test_counts_agree_while_requests_run_and_after_they_end(
    launch: Launch, every_envoy: str
) -> None:
    scene = await launch(Options(replica_arguments=SLOW))
    async with AsyncExitStack() as cleanup:
        streams = await open_streams(scene, cleanup, 12, tokens=30)
        await scene.agree_on_inflight(12)
        for stream in streams[:6]:
            await stream.read()
        for stream in streams[6:]:
            await stream.read()
    await scene.agree_on_inflight(0)
    log = await scene.access_log(12)
    assert {line["status"] for line in log} == {200}


async def test_counts_agree_when_clients_abort_before_and_during_the_response(
    launch: Launch, every_envoy: str
) -> None:
    scene = await launch(Options(replica_arguments=SLOW))
    before = [asyncio.create_task(scene.send(chat(f"user {i}", tokens=200))) for i in range(6)]
    async with AsyncExitStack() as cleanup:
        during = await open_streams(scene, cleanup, 6, tokens=200)
        for stream in during:
            await stream.content.readline()
        await scene.agree_on_inflight(12)
        for task in before:
            task.cancel()
        await asyncio.gather(*before, return_exceptions=True)
        await scene.agree_on_inflight(6)
        for stream in during:
            stream.close()
        await scene.agree_on_inflight(0)


@asynccontextmanager
async def begun_body(scene: Scene, length: int) -> AsyncIterator[None]:
    """Begin a request with a body of `length` bytes, and disconnect at the end of the context."""
    _, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
    # More than the sidecar reads of a body that it receives in part.
    writer.write(head.encode() + json.dumps(chat("x" * 70_000)).encode()[:length])
    await writer.drain()
    yield
    writer.close()


async def test_counts_agree_when_a_client_aborts_before_its_body_is_complete(
    launch: Launch, every_envoy: str
) -> None:
    """Verify that Envoy never called the sidecar."""
    scene = await launch(Options(replica_arguments=SLOW))
    async with begun_body(scene, 100_000):
        await asyncio.sleep(0.2)
        assert await scene.sidecar.inflight() == {}

    async def disconnected() -> bool:
        (connections,) = (await scene.envoy.stats("http.llm.downstream_cx_active$")).values()
        return not connections

    await until(disconnected, PATIENCE, "the client to be disconnected")
    assert set((await scene.envoy.stats("ext_proc.streams_started$")).values()) == {0}
    await scene.agree_on_inflight(0)


async def test_counts_agree_when_a_client_aborts_in_a_large_body(
    launch: Launch, every_envoy: str
) -> None:
    """Abort after the decision, which needs only the start of such a body."""
    scene = await launch(Options(replica_arguments=SLOW))
    async with begun_body(scene, 9_000_000):
        await scene.agree_on_inflight(1)
    await scene.agree_on_inflight(0)


async def test_counts_agree_when_the_upstream_resets(launch: Launch, every_envoy: str) -> None:
    scene = await launch(Options(replica_arguments=SLOW))
    async with AsyncExitStack() as cleanup:
        streams = await open_streams(scene, cleanup, 6, tokens=200)
        await scene.agree_on_inflight(6)
        await scene.replicas.kill()
        for stream in streams:
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.read()

    async def empty() -> bool:
        return await scene.sidecar.inflight() == {}

    await until(empty, PATIENCE, "the ledger to be empty")


async def test_counts_agree_when_the_upstream_refuses(launch: Launch, every_envoy: str) -> None:
    dead = f"127.0.0.1:{free_port()}"
    scene = await launch(
        Options(replicas=1, more_endpoints=[dead], strategy="RoundRobin", replica_arguments=SLOW)
    )
    replies = [await scene.send(chat("hello")) for _ in range(4)]
    assert {reply.status for reply in replies} == {200}
    assert sorted(line["attempts"] for line in await scene.access_log(4)) == [1, 1, 2, 2]
    await scene.agree_on_inflight(0)


async def test_counts_agree_when_a_deadline_passes(launch: Launch, every_envoy: str) -> None:
    def with_deadline(config: Json) -> None:
        listener = config["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        routes = manager["route_config"]["virtual_hosts"][0]["routes"]
        routes[0]["route"]["timeout"] = "0.5s"

    scene = await launch(Options(change_config=with_deadline, replica_arguments=SLOW))
    reply = await scene.send(chat("hello", tokens=200))
    assert reply.status == 504
    await scene.agree_on_inflight(0)


@pytest.mark.parametrize("config", ["fallback-override-host.yaml", "envoy.yaml"])
async def test_a_retry_moves_the_count_to_the_serving_endpoint(launch: Launch, config: str) -> None:
    dead = f"127.0.0.1:{free_port()}"
    scene = await launch(
        Options(
            replicas=1,
            more_endpoints=[dead],
            strategy="RoundRobin",
            config=config,
            replica_arguments=SLOW,
        )
    )
    async with AsyncExitStack() as cleanup:
        streams = await open_streams(scene, cleanup, 4, tokens=30)
        assert {stream.status for stream in streams} == {200}
        await scene.agree_on_inflight(4)
        for stream in streams:
            await stream.read()
    await scene.agree_on_inflight(0)
    attempts = sorted(line["attempts"] for line in await scene.access_log(4))
    assert attempts == [1, 1, 2, 2]


async def test_counts_agree_when_the_upstream_sends_trailers(
    launch: Launch, every_envoy: str
) -> None:
    def with_trailers(config: Json) -> None:
        listener = config["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_protocol_options"] = {"enable_trailers": True}
        (chosen,) = (c for c in config["static_resources"]["clusters"] if c["name"] == "chosen")
        options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        chosen["typed_extension_protocol_options"] = {
            options: {
                "@type": f"type.googleapis.com/{options}",
                "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}},
            }
        }

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                writer.write(b"2\r\n{}\r\n0\r\nx-done: yes\r\n\r\n")

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        scene = await launch(
            Options(
                change_config=with_trailers,
                more_models=[{"name": "trailing", "endpoints": [address]}],
                replica_arguments=SLOW,
            )
        )
        # aiohttp's client does not find the end of a body with trailers; httpx does.
        async with httpx.AsyncClient(base_url=scene.envoy.url) as client:
            for _ in range(3):
                reply = await client.post(CHAT, json=chat("hello", model="trailing"))
                assert reply.content == b"{}"
        await scene.agree_on_inflight(0)
        # Headers, body and trailers of three requests get one reply each, none of them spurious.
        stats = await scene.envoy.stats("ext_proc")
        assert stats["http.llm.ext_proc.stream_msgs_sent"] == 9
        assert stats["http.llm.ext_proc.stream_msgs_received"] == 9
        assert stats["http.llm.ext_proc.spurious_msgs_received"] == 0
