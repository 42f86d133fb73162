"""Requests with trailers: their bodies reach the servers once.

On a route with retries, Envoy repeats a body that passes ext_proc in parts if trailers follow.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from extproc.lab.stack.processes import free_port
from tests.e2e.http2_client import send_http2
from tests.e2e.scene import CHAT, CONFIGS, Json, Launch, Options, chat, manager_of
from tests.e2e.test_renaming import (
    FORMS,
    LONG,
    PLAIN,
    SHORT,
    Arrived,
    Mirror,
    assert_no_protocol_errors,
    mirror,
    models,
    sized,
    with_http1_trailers,
)

PICKER = "endpoint-picker.yaml"
ALL = [*CONFIGS, PICKER]
NAMES = [("to-long", LONG), (SHORT, SHORT)]
"""Requested and served names: one that the sidecar changes, and one that it keeps."""


def served_by(config: str, *addresses: str) -> Options:
    """Return options with two candidates for each request."""
    return Options(
        replicas=1,
        config=config,
        more_models=models(*addresses),
        more_endpoints=list(addresses),
    )


def arrived(*upstreams: Mirror) -> list[bytes]:
    """Return the bodies that reached the upstreams, and forget them."""
    bodies = [one.arrived.body for one in upstreams if one.arrived.body]
    for one in upstreams:
        one.arrived = Arrived(b"", None)
    return bodies


@pytest.mark.parametrize("config", ALL)
async def test_a_body_arrives_once(launch: Launch, every_envoy: str, config: str) -> None:
    sizes = (10, 50_000) if config == PICKER else (10, 50_000, 200_000, 3_000_000)
    async with mirror() as (one, first), mirror() as (two, second):
        scene = await launch(served_by(config, first, second))
        for name, served in NAMES:
            for size in sizes:
                body, expected = sized(name, size), sized(served, size)
                for cuts in ((), (len(body) // 2,), (20, len(body) - 1)):
                    for announce in (True, False):
                        reply = await send_http2(scene, PLAIN, body, cuts=cuts, announce=announce)
                        assert reply.status == 200, (size, cuts, announce)
                        assert arrived(one, two) == [expected], (size, cuts, announce)
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)
        stats = await scene.envoy.stats("ext_proc")
        assert stats["http.llm.ext_proc.message_timeouts"] == 0


@pytest.mark.parametrize("config", CONFIGS)
async def test_http_1_trailers_arrive_once_too(launch: Launch, config: str) -> None:
    def with_trailers(document: Json) -> None:
        manager_of(document)["http_protocol_options"] = {"enable_trailers": True}

    async with mirror() as (one, first), mirror() as (two, second):
        options = served_by(config, first, second)
        scene = await launch(Options(**{**vars(options), "change_config": with_trailers}))
        assert " 200 " in await with_http1_trailers(scene, sized("to-long", 100))
        assert arrived(one, two) == [sized(LONG, 100)]


@pytest.mark.parametrize("config", ALL)
async def test_a_second_endpoint_gets_the_body_once(launch: Launch, config: str) -> None:
    async with mirror() as (upstream, address):
        dead = f"127.0.0.1:{free_port()}"
        scene = await launch(served_by(config, dead, address))
        for i in range(20):
            # The home endpoint of about half of these prefixes is the dead one.
            body, expected = (
                json.dumps(chat(f"{i} " + "x" * 1_000, model=name)).encode()
                for name in ("to-long", LONG)
            )
            assert (await send_http2(scene, CHAT, body)).status == 200
            assert arrived(upstream) == [expected]
        attempts = {line["attempts"] for line in await scene.access_log(20)}
        assert attempts == {1, 2}


@pytest.mark.parametrize("config", ALL)
async def test_a_response_streams_and_is_counted(launch: Launch, config: str) -> None:
    scene = await launch(Options(config=config, replica_arguments=("--time-scale", "2")))
    body = json.dumps(chat("hello", tokens=40, stream=True)).encode()
    sending = asyncio.create_task(send_http2(scene, CHAT, body))
    await scene.agree_on_inflight(1)
    reply = await sending
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")
    await scene.agree_on_inflight(0)


async def test_a_refusal_does_not_wait_for_a_timeout(launch: Launch) -> None:
    scene = await launch(Options(replicas=1))
    for path, body, code in [
        (CHAT, b'{"model": "llama", "messages": [', "invalid_request"),
        (CHAT, json.dumps(chat("hello", model="unknown")).encode(), "model_not_found"),
        (CHAT, b"", "invalid_request"),
        (FORMS, b"no form", "invalid_request"),
    ]:
        reply = await send_http2(scene, path, body)
        assert json.loads(reply.body)["error"]["code"] == code
    stats = await scene.envoy.stats("ext_proc")
    assert stats["http.llm.ext_proc.message_timeouts"] == 0


class TestDefectsOfEnvoy:
    """A failure of these tests means that Envoy has fixed them: then change docs/envoy.md."""

    @pytest.mark.parametrize("config", ["envoy.yaml", "metadata.yaml", CONFIGS[2]])
    async def test_the_fallback_gets_the_body_twice(self, launch: Launch, config: str) -> None:
        async with mirror() as (one, first), mirror() as (two, second):
            scene = await launch(served_by(config, first, second))
            await scene.sidecar.kill()
            body = sized(SHORT, 10)
            bodies = []
            # The fallback also has a replica, which keeps nothing and gets a third of the requests.
            for _ in range(20):
                await send_http2(scene, PLAIN, body)
                bodies += arrived(one, two)
            assert set(bodies) == {body + body}

    @pytest.mark.parametrize(("config", "size"), [(PICKER, 100_000), ("envoy.yaml", 9_000_000)])
    async def test_a_body_that_was_decided_early_is_repeated(
        self, launch: Launch, config: str, size: int
    ) -> None:
        async with mirror() as (one, first), mirror() as (two, second):
            scene = await launch(served_by(config, first, second))
            body = sized(SHORT, size)
            await send_http2(scene, PLAIN, body, announce=True)
            (got,) = arrived(one, two)
            assert got.startswith(body)
            assert len(got) > len(body)
