"""Gateways with other configurations, and responses that carry the requested model name."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.scene import (
    CHAT,
    Json,
    Launch,
    Options,
    chat,
    ext_proc_filter,
    manager_of,
    processing_modes,
    show_bodies,
)
from tests.extent import PATIENCE

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "meta/llama-3"
ALIAS = "gpt-4o"
WRITTEN = 'I write "model": "meta/llama-3" and {"model": "meta/llama-3"}.'


class Upstream:
    """A server that knows its model by one name and records the request headers."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.resume = asyncio.Event()
        self.resume.set()

    async def respond(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        assert body["model"] == SERVED
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if body.get("stream"):
            return await self._stream(request)
        raw = json.dumps(self.document(SERVED)).encode()
        if body.get("compressed"):
            headers = {"content-encoding": "gzip", "content-type": "application/json"}
            return web.Response(body=gzip.compress(raw), headers=headers)
        return web.Response(body=raw, content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number, event in enumerate(self.events(SERVED)):
            await response.write(event)
            if not number:
                await self.resume.wait()
        return response

    @staticmethod
    def document(name: str) -> Json:
        choice = {"index": 0, "message": {"role": "assistant", "content": WRITTEN}}
        return {"id": "c1", "object": "chat.completion", "model": name, "choices": [choice]}

    @staticmethod
    def events(name: str) -> list[bytes]:
        chunks: list[Json] = [
            {"id": "c1", "model": name, "choices": [{"delta": {"content": WRITTEN}}]}
        ] * 3
        chunks.append({"type": "response.completed", "response": {"id": "r1", "model": name}})
        return [
            *(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks),
            b"data: [DONE]\n\n",
        ]


@asynccontextmanager
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    """Run an upstream and yield it with its address."""
    served = Upstream()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", served.respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield served, f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def aliased(address: str, **others: Any) -> Options:
    """Return a scene with a second model at this address that has another name on its server."""
    model = {
        "name": "llama-3",
        "aliases": [ALIAS],
        "servedName": SERVED,
        "answerAsRequested": True,
        "endpoints": [address],
    }
    return Options(**{"replicas": 1, "more_models": [model], **others})


def as_envoy_ai_gateway(config: Json) -> None:
    """Change the filter and the cluster to those that Envoy AI Gateway generates.

    The gateway does so for an InferencePool with the annotation
    `aigateway.envoyproxy.io/processing-body-mode: buffered`.
    """
    ext_proc = ext_proc_filter(config)
    for key in ("metadata_options", "response_attributes", "route_cache_action", "status_on_error"):
        del ext_proc[key]
    ext_proc["message_timeout"] = "300s"
    ext_proc["processing_mode"] = {
        "request_header_mode": "SEND",
        "request_body_mode": "BUFFERED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND",
        "response_body_mode": "BUFFERED",
        "response_trailer_mode": "SEND",
    }
    config["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = 52_428_800
    by_destination(config)


def by_destination(config: Json) -> None:
    """Choose the host by the endpoint picker's header only, without retries."""
    (route,) = manager_of(config)["route_config"]["virtual_hosts"][0]["routes"]
    del route["route"]["retry_policy"], route["request_body_buffer_limit"]
    clusters = config["static_resources"]["clusters"]
    (cluster,) = (one for one in clusters if one["name"] == "replicas")
    del cluster["load_balancing_policy"], cluster["load_assignment"]
    cluster["type"] = "ORIGINAL_DST"
    cluster["lb_policy"] = "CLUSTER_PROVIDED"
    cluster["original_dst_lb_config"] = {"use_http_header": True, "http_header_name": DESTINATION}


class TestBufferingEnvoyAIGateway:
    async def test_sends_each_request_to_an_endpoint_of_its_model(self, launch: Launch) -> None:
        async with upstream() as (served, address):
            scene = await launch(
                aliased(
                    address,
                    replicas=2,
                    config="endpoint-picker.yaml",
                    change_config=as_envoy_ai_gateway,
                )
            )
            for size in (10, 100_000, 700_000):
                reply = await scene.send(chat("x" * size, model=ALIAS))
                assert (reply.status, reply.json()) == (200, Upstream.document(ALIAS))
                reply = await scene.send(chat("x" * size))
                assert reply.status in (200, 400)  # too long for the stand-in's context
                assert reply.replica in scene.replicas.addresses
            assert len(served.headers) == 3
            for headers in served.headers:
                assert headers[DESTINATION] == address
                assert headers["x-gateway-model-name"] == ALIAS
                assert headers["x-gateway-base-model-name"] == "llama-3"
            await scene.agree_on_inflight(0)

    async def test_ignores_destination_and_model_headers_of_clients(self, launch: Launch) -> None:
        connections = 0

        async def canary(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            writer.close()

        async with (
            upstream() as (served, address),
            await asyncio.start_server(canary, "127.0.0.1", 0) as forbidden,
        ):
            port = forbidden.sockets[0].getsockname()[1]
            scene = await launch(
                aliased(address, config="endpoint-picker.yaml", change_config=as_envoy_ai_gateway)
            )
            evil = {
                DESTINATION: f"127.0.0.1:{port}",
                "x-gateway-model-name": "llama",
                "x-gateway-base-model-name": "llama",
            }
            assert (await scene.send(chat("hello", model=ALIAS), headers=evil)).status == 200
            assert (await scene.send(b"not json", headers=evil)).status == 400
            await scene.sidecar.kill()
            assert (await scene.send(chat("hello", model=ALIAS), headers=evil)).status == 500
        (headers,) = served.headers
        assert headers[DESTINATION] == address
        assert headers["x-gateway-model-name"] == ALIAS
        assert headers["x-gateway-base-model-name"] == "llama-3"
        assert connections == 0


def with_response_bodies(config: Json) -> None:
    """Make Envoy send response bodies to the sidecar, with the recommended modes of requests."""
    for modes in processing_modes(config):
        modes["response_header_mode"] = "SEND"
        modes["response_body_mode"] = "STREAMED"


def buffered(config: Json) -> None:
    with_response_bodies(config)
    for modes in processing_modes(config):
        modes["response_body_mode"] = "BUFFERED"


def on_request(mode: str) -> Callable[[Json], None]:
    """Return a change that makes Envoy send response bodies only if the sidecar requests them."""

    def changed(config: Json) -> None:
        show_bodies(config, mode)
        ext_proc_filter(config)["allow_mode_override"] = True
        for modes in processing_modes(config):
            modes["response_header_mode"] = "SEND"

    return changed


WITH_RESPONSE_BODIES = [
    pytest.param("envoy.yaml", with_response_bodies, id="streamed"),
    pytest.param("endpoint-picker.yaml", by_destination, id="duplex"),
    pytest.param("envoy.yaml", on_request("BUFFERED_PARTIAL"), id="override-partial"),
    pytest.param("envoy.yaml", on_request("BUFFERED"), id="override-buffered"),
]


class TestResponseToAlias:
    @pytest.mark.parametrize(
        ("config", "change"),
        [*WITH_RESPONSE_BODIES, pytest.param("envoy.yaml", buffered, id="buffered")],
    )
    async def test_carries_the_alias(
        self, launch: Launch, config: str, change: Callable[[Json], None]
    ) -> None:
        async with upstream() as (_, address):
            options = aliased(address, config=config, change_config=change)
            scene = await launch(options)
            for size in (10, 100_000):
                body = chat("x" * size, model=ALIAS)
                reply = await scene.send(body)
                assert (reply.status, reply.json()) == (200, Upstream.document(ALIAS))
                assert len(reply.body) == len(json.dumps(Upstream.document(ALIAS)))
                streamed = await scene.send({**body, "stream": True})
                assert streamed.body == b"".join(Upstream.events(ALIAS))
            by_server = await scene.send(chat("hello", model=SERVED))
            assert by_server.status == 404
            await scene.agree_on_inflight(0)
            stats = await scene.envoy.stats("ext_proc")
            assert stats["http.llm.ext_proc.spurious_msgs_received"] == 0
            assert stats["http.llm.ext_proc.streams_failed"] == 0

    @pytest.mark.parametrize(("config", "change"), WITH_RESPONSE_BODIES)
    async def test_arrives_event_by_event(
        self, launch: Launch, config: str, change: Callable[[Json], None]
    ) -> None:
        async with upstream() as (served, address):
            scene = await launch(aliased(address, config=config, change_config=change))
            served.resume.clear()
            async with scene.stream(chat("hello", model=ALIAS)) as response:
                async with asyncio.timeout(PATIENCE):
                    line = await response.content.readline()
                assert json.loads(line.removeprefix(b"data: "))["model"] == ALIAS
                served.resume.set()
                await response.read()

    @pytest.mark.parametrize(("config", "change"), WITH_RESPONSE_BODIES[:3])
    async def test_keeps_the_served_name_if_compressed(
        self, launch: Launch, config: str, change: Callable[[Json], None]
    ) -> None:
        async with upstream() as (_, address):
            scene = await launch(aliased(address, config=config, change_config=change))
            reply = await scene.send(chat("hello", model=ALIAS, compressed=True))
            assert (reply.status, reply.json()) == (200, Upstream.document(SERVED))

    async def test_passes_unchanged_without_response_bodies(self, launch: Launch) -> None:
        async with upstream() as (_, address):
            scene = await launch(aliased(address))
            reply = await scene.send(chat("hello", model=ALIAS))
            assert (reply.status, reply.json()) == (200, Upstream.document(SERVED))
            assert reply.headers["content-length"] == str(len(reply.body))


async def test_the_sidecar_requests_response_bodies_only_for_aliases(launch: Launch) -> None:
    async with upstream() as (_, address):
        change = on_request("BUFFERED_PARTIAL")
        scene = await launch(aliased(address, change_config=change))
        before = await _messages(scene)
        assert (await scene.send(chat("hello"), path=CHAT)).status == 200
        plain = await _messages(scene) - before
        assert (await scene.send(chat("hello", model=ALIAS), path=CHAT)).status == 200
        assert await _messages(scene) - before - plain > plain


async def _messages(scene: Any) -> int:
    """Return the number of messages that Envoy has sent to the sidecar."""
    stats: dict[str, int] = await scene.envoy.stats("ext_proc")
    return stats["http.llm.ext_proc.stream_msgs_sent"]
