"""With the recommended configuration no request fails at a dead endpoint, which is soon avoided."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import get_args

import pytest

from extproc.core.schema import StrategyName
from extproc.lab.stack.processes import free_port
from tests.e2e.failing_endpoint import Manner, failing_endpoint
from tests.e2e.scene import MODEL, Launch, Options, Scene, chat, chosen_endpoint

REQUESTS = 60
AT_ONCE = 6
QUICK = ("--time-scale", "200", "--kv-tokens", "8000000", "--max-model-len", "8000000")
STRATEGIES = [name for name in get_args(StrategyName) if name != "Chain"]


def with_dead_endpoint(dead: str, strategy: str = "PrefixHash") -> Options:
    """Return a scene with three endpoints that serve and one that does not."""
    return Options(more_endpoints=[dead], strategy=strategy, replica_arguments=QUICK)


async def send_requests(scene: Scene, requests: int = REQUESTS) -> Counter[int]:
    """Send many requests, a few at once, and count their statuses."""
    statuses = Counter[int]()
    for start in range(0, requests, AT_ONCE):
        sent = (scene.send(chat(f"user {start + i}")) for i in range(AT_ONCE))
        statuses.update(reply.status for reply in await asyncio.gather(*sent))
    return statuses


async def ejected(scene: Scene) -> set[str]:
    endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
    return {one["address"] for one in endpoints if one["state"] == "ejected"}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_an_endpoint_that_refuses_is_avoided_by_every_strategy(
    launch: Launch, strategy: str
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    scene = await launch(with_dead_endpoint(dead, strategy))
    assert await send_requests(scene) == {200: REQUESTS}
    chosen = [chosen_endpoint(line) == dead for line in await scene.access_log(REQUESTS)]
    # Only the first requests, before the sidecar ejects the endpoint. Strategies that read
    # metrics may notice earlier that the endpoint does not respond, and never choose it.
    assert sum(chosen) <= REQUESTS // 4
    # On a slow machine the endpoint may get its first trial before the end.
    assert sum(chosen[-REQUESTS // 2 :]) <= 1
    assert await ejected(scene) == ({dead} if any(chosen) else set())


@pytest.mark.parametrize("manner", ["resets", 200])
@pytest.mark.parametrize("size", [10, 140_000, 3_000_000])
async def test_a_retry_sends_the_whole_body_again(
    launch: Launch, manner: Manner, size: int
) -> None:
    async with failing_endpoint() as failing:
        if manner == "resets":
            await failing.listen(manner)
        scene = await launch(with_dead_endpoint(failing.address, "RoundRobin"))
        for _ in range(4):
            body = json.dumps(chat("x" * size)).encode()
            reply = await scene.send(body)
            assert reply.status == 200
            assert reply.headers["x-stand-in-body-bytes"] == str(len(body))
        attempts = Counter(line["attempts"] for line in await scene.access_log(4))
        assert attempts[2] >= 1
    await scene.agree_on_inflight(0)


async def test_errors_from_envoy_have_the_openai_shape(launch: Launch) -> None:
    scene = await launch(with_dead_endpoint(f"127.0.0.1:{free_port()}"))
    unknown = await scene.send(b"", path="/v1/no-such-path", method="GET")
    assert unknown.status == 404
    assert unknown.json()["error"]["code"] == "unknown_path"
    assert "GET /v1/no-such-path" in unknown.json()["error"]["message"]
    await scene.replicas.kill()
    dead = await scene.send(chat("hello"))
    assert dead.status in (502, 503)
    assert dead.headers["content-type"] == "application/json"
    error = dead.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "upstream_unavailable"
    assert dead.headers["x-request-id"]


async def test_a_body_without_a_length_beyond_8_mib_gets_413_as_json(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=QUICK))

    async def endless() -> object:
        for _ in range(90):
            yield b"x" * 100_000

    async with scene.session.post("/v1/chat/completions", data=endless()) as reply:
        assert reply.status == 413
        assert (await reply.json())["error"]["code"] == "request_too_large"
