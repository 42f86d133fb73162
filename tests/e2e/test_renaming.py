"""Bodies reach the servers with the served model name and no other change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle

import httpx
import pytest
from aiohttp import web

from extproc.lab.stack.processes import free_port
from tests.e2e.scene import (
    Json,
    Launch,
    Options,
    Scene,
    chat,
    manager_of,
    processing_modes,
    routes_of,
    show_bodies,
)
from tests.extent import PATIENCE

# Upstreams process no tokens on this path, so that long requests are cheap.
PLAIN = "/v1/embeddings"
FORMS = "/v1/audio/transcriptions"

LONG = "organisation/a-name-that-is-longer-than-before"
SHORT = "s"


@dataclass(frozen=True)
class Arrived:
    """The body and the content length that reached an upstream."""

    body: bytes
    length: str | None
    """The header `content-length`."""


class Mirror:
    """An upstream that records the latest request."""

    def __init__(self) -> None:
        self.arrived = Arrived(b"", None)

    async def respond(self, request: web.Request) -> web.Response:
        self.arrived = Arrived(await request.read(), request.headers.get("content-length"))
        return web.Response()


@asynccontextmanager
async def mirror() -> AsyncIterator[tuple[Mirror, str]]:
    """Run a mirror and yield it with its address."""
    seen = Mirror()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", seen.respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield seen, f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def models(*addresses: str) -> list[Json]:
    """Return two models, one with a longer served name and one with a shorter."""
    return [
        {"name": "to-long", "servedName": LONG, "endpoints": list(addresses)},
        {"name": "to-short", "aliases": [SHORT], "servedName": SHORT, "endpoints": list(addresses)},
    ]


RENAMED = [("to-long", LONG), ("to-short", SHORT)]


def options(
    address: str, config: str, mode: str | None = None, *, in_part: bool = False
) -> Options:
    def changed(document: Json) -> None:
        if mode:
            show_bodies(document, mode)
        for route in routes_of(document) if in_part else ():
            # On a route with retries, Envoy corrupts a body that it sends to the sidecar in part.
            route["route"].pop("retry_policy", None)
            route.pop("request_body_buffer_limit")

    return Options(
        replicas=1,
        config=config,
        change_config=changed,
        more_models=models(address),
        more_endpoints=[address],
    )


def sized(model: str, size: int) -> bytes:
    """Return a body slightly larger than this, with unusual JSON that must stay unchanged."""
    text = f'{{ "n": 1.50, "model" : {json.dumps(model)},\t"input":"\\u0078", "x": "'
    return text.encode() + b"x" * size + b'", "n": 2E0 }\n'


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield the body in pieces, for a request without a content length."""
    for start in range(0, len(body), 50_000):
        yield body[start : start + 50_000]
        await asyncio.sleep(0.002)


async def assert_no_protocol_errors(scene: Scene) -> None:
    """Assert that Envoy accepted every message of the sidecar."""
    stats = await scene.envoy.stats("ext_proc")
    for counter in ("spurious_msgs_received", "rejected_header_mutations", "streams_failed"):
        assert stats[f"http.llm.ext_proc.{counter}"] == 0, stats


@pytest.mark.parametrize(
    ("config", "mode", "sizes"),
    [
        ("envoy.yaml", None, (10, 33_000, 130_000, 135_000, 700_000)),
        ("envoy.yaml", "BUFFERED", (10, 30_000, 32_650)),
        ("endpoint-picker.yaml", None, (10, 33_000, 130_000, 700_000)),
    ],
)
async def test_bodies_of_every_size_arrive_with_the_served_name(
    launch: Launch, config: str, mode: str | None, sizes: Sequence[int]
) -> None:
    async with mirror() as (upstream, address):
        scene = await launch(options(address, config, mode))

        def assert_arrived(expected: bytes) -> None:
            assert upstream.arrived.body == expected
            # All modes but BUFFERED send every body in chunks.
            length = str(len(expected)) if mode == "BUFFERED" else None
            assert upstream.arrived.length == length

        async with httpx.AsyncClient(http1=False, http2=True, base_url=scene.envoy.url) as http2:
            for size in sizes:
                for name, served in RENAMED:
                    body, expected = sized(name, size), sized(served, size)
                    assert (await scene.send(body, path=PLAIN)).status == 200
                    assert_arrived(expected)
                    assert (await http2.post(PLAIN, content=body)).status_code == 200
                    assert_arrived(expected)
                    # Without `request_body_buffer_limit`, Envoy 1.36 sends only its start.
                    async with scene.session.post(PLAIN, data=pieces(body)) as response:
                        assert response.status == 200
                    assert_arrived(expected)
            assert (await scene.send(sized(SHORT, 10), path=PLAIN)).status == 200
            assert upstream.arrived.body == sized(SHORT, 10)
        await assert_no_protocol_errors(scene)
        await scene.agree_on_inflight(0)


@pytest.mark.parametrize("config", ["envoy.yaml", "endpoint-picker.yaml"])
async def test_a_body_in_two_packets_arrives_complete(launch: Launch, config: str) -> None:
    async with mirror() as (upstream, address):
        scene = await launch(options(address, config))
        sizes = (20_000, 40_000, 66_000, 128_000, 135_000, 700_000)
        for size, (name, served) in zip(sizes, cycle(RENAMED), strict=False):
            body, expected = sized(name, size), sized(served, size)
            for cut in (18, 32_000, len(body) // 2, len(body) - 1):
                assert " 200 " in await in_two_parts(scene, body, cut), (size, cut)
                assert upstream.arrived.body == expected, (size, cut)
        await assert_no_protocol_errors(scene)


async def in_two_parts(scene: Scene, body: bytes, cut: int) -> str:
    """Send a body with a pause in between and return the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    head = f"POST {PLAIN} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[:cut])
    await asyncio.sleep(0.02)
    writer.write(body[cut:])
    response = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    writer.close()
    return response.decode()


@pytest.mark.parametrize("mode", [None, "BUFFERED"])
async def test_a_body_with_trailers_arrives_with_the_served_name(
    launch: Launch, mode: str | None
) -> None:
    """Send trailers, with which Envoy does not mark the end of the body."""

    def with_trailers(config: Json) -> None:
        manager_of(config)["http_protocol_options"] = {"enable_trailers": True}
        if mode:
            show_bodies(config, mode)
        for modes in processing_modes(config):
            modes["request_trailer_mode"] = "SEND"

    async with mirror() as (upstream, address):
        scene = await launch(
            Options(
                replicas=1,
                change_config=with_trailers,
                more_models=models(address),
                more_endpoints=[address],
            )
        )
        assert " 200 " in await with_http1_trailers(scene, sized("to-long", 100))
        assert upstream.arrived == Arrived(sized(LONG, 100), None)


async def with_http1_trailers(scene: Scene, body: bytes) -> str:
    """Send a body with a trailer over HTTP/1.1 and return the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    writer.write(f"POST {PLAIN} HTTP/1.1\r\nhost: x\r\n".encode())
    writer.write(b"transfer-encoding: chunked\r\ntrailer: x-checksum\r\n\r\n")
    writer.write(b"%x\r\n%s\r\n0\r\nx-checksum: 1\r\n\r\n" % (len(body), body))
    response = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    writer.close()
    return response.decode()


@pytest.mark.parametrize("config", ["fallback-override-host.yaml", "endpoint-picker.yaml"])
async def test_a_second_endpoint_also_gets_the_renamed_body(launch: Launch, config: str) -> None:
    async with mirror() as (upstream, address):
        dead = f"127.0.0.1:{free_port()}"
        scene = await launch(
            Options(
                replicas=1,
                config=config,
                more_models=models(dead, address),
                more_endpoints=[address, dead],
            )
        )
        for i in range(20):
            # The home endpoint of about half of these prefixes is the dead one.
            body, expected = (
                json.dumps(chat(f"{i} " + "x" * 10_000, model=model)).encode()
                for model in ("to-long", LONG)
            )
            assert (await scene.send(body)).status == 200
            assert upstream.arrived.body == expected
        decided = [
            line.get("endpoint", line.get("decision")) for line in await scene.access_log(20)
        ]
        assert any(dead in str(one) for one in decided)


@pytest.mark.parametrize("mode", ["BUFFERED_PARTIAL", "NONE"])
async def test_a_body_without_a_visible_model_field_passes_unchanged(
    launch: Launch, mode: str
) -> None:
    async with mirror() as (upstream, address):
        scene = await launch(options(address, "envoy.yaml", mode, in_part=mode != "NONE"))
        late = json.dumps({"input": "x" * 200_000, "model": "to-long"}).encode()
        reply = await scene.send(late, path=PLAIN, headers={"x-model": "to-long"})
        assert reply.status == 200
        length = str(len(late)) if mode == "NONE" else None
        assert upstream.arrived == Arrived(late, length)


@dataclass(frozen=True)
class Strict(Options):
    """Replicas that accept only their own names, like vLLM, behind a model with other names."""

    replicas: int = 2
    replica_arguments: Sequence[str] = (
        *("--time-scale", "200", "--model", "meta/llama"),
        *("--max-loras", "1", "--adapters", "sql", "--lora-load-seconds", "0"),
    )

    def models(self, addresses: Sequence[str]) -> Json:
        return {
            "models": [
                {
                    "name": "llama",
                    "aliases": ["gpt-4o"],
                    "servedName": "meta/llama",
                    "adapters": ["sql"],
                    "endpoints": list(addresses),
                }
            ]
        }


async def test_every_name_of_the_model_reaches_the_replicas(launch: Launch) -> None:
    scene = await launch(Strict())
    for name in ("llama", "gpt-4o", "sql", "llama_sql", "gpt-4o_sql"):
        for stream in (False, True):
            reply = await scene.send(chat("hello", model=name, stream=stream))
            assert reply.status == 200, (name, reply.body)
            served = "sql" if "sql" in name else "meta/llama"
            assert f'"{served}"'.encode() in reply.body
    refused = await scene.send(chat("hello", model="meta"))
    assert refused.error()["code"] == "model_not_found"


async def test_the_model_field_of_a_form_is_renamed(launch: Launch) -> None:
    def form(model: str, size: int) -> bytes:
        fields = [("model", model.encode()), ("file", bytes(range(256)) * size)]
        parts = (
            b'--XX\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
            % (name.encode(), value)
            for name, value in fields
        )
        return b"".join(parts) + b"--XX--\r\n"

    async with mirror() as (upstream, address):
        scene = await launch(options(address, "envoy.yaml"))
        for size in (10, 1_000):
            headers = {"content-type": "multipart/form-data; boundary=XX"}
            reply = await scene.send(form("to-long", size), path=FORMS, headers=headers)
            assert reply.status == 200
            assert upstream.arrived.body == form(LONG, size)
