"""Bodies of every size pass unchanged, in every processing mode that can route by body."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.e2e.scene import (
    CHAT,
    CONFIGS,
    HttpResponse,
    Json,
    Launch,
    Options,
    Scene,
    chat,
    ext_proc_filter,
    processing_modes,
    show_bodies,
)
from tests.extent import FULL, PATIENCE

OTHER = {"name": "other", "endpoints": ["127.0.0.1:9"]}
FAST = ("--time-scale", "200", "--kv-tokens", "8000000", "--max-model-len", "8000000")
HEAD_LIMIT = 65_536
MARGINS = (-300, 0, 300, 4096) if FULL else (-300, 300)
"""Bytes by which bodies differ from a limit."""


def serialised(body: Json) -> bytes:
    return json.dumps(body).encode()


def assert_whole(reply: HttpResponse, sent: bytes) -> None:
    assert reply.status == 200
    assert reply.headers["x-stand-in-body-bytes"] == str(len(sent))
    assert reply.headers["x-stand-in-body-md5"] == hashlib.md5(sent).hexdigest()


@pytest.mark.parametrize("size", [10, 30_000, 33_000, 66_000, 700_000, 8_000_000])
async def test_a_body_arrives_unchanged_at_the_home_endpoint(launch: Launch, size: int) -> None:
    scene = await launch(Options(replica_arguments=FAST))
    home = (await scene.send(chat("x" * 200))).replica
    body = serialised(chat("x" * 200 + "y" * size))
    reply = await scene.send(body)
    assert_whole(reply, body)
    assert reply.replica == home


CUT_SIZES = (20_000, 33_000, 40_000, 64_000, 66_000, 100_000, 128_000, 135_000, 200_000, 700_000)


async def send_in_two_parts(scene: Scene, body: bytes, cut: int) -> str:
    """Send a body with a pause in between and return the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[:cut])
    # Long enough for the sidecar to reply to the headers first.
    await asyncio.sleep(0.02)
    writer.write(body[cut:])
    response = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    writer.close()
    return response.decode()


@pytest.mark.parametrize("config", CONFIGS)
async def test_a_body_in_two_packets_arrives_complete(launch: Launch, config: str) -> None:
    """Cover two Envoy defects, which the recommended configurations avoid.

    Envoy 1.38 to 1.40 loses the end of a body if the read that overflows its buffer is the last.
    It also corrupts a body that it sends to the sidecar in part on a route with retries.
    """
    scene = await launch(Options(config=config, replica_arguments=FAST))
    for sidecar_is_up in (True, False):
        for size in CUT_SIZES:
            body = serialised(chat("x" * size))
            for cut in (len(body) // 2, 20_000, 32_000, len(body) - 1):
                response = await send_in_two_parts(scene, body, cut)
                assert " 200 " in response, (size, cut, response)
                assert hashlib.md5(body).hexdigest() in response, (size, cut, response)
        if sidecar_is_up:
            await scene.agree_on_inflight(0)
            await scene.sidecar.kill()
        if config == "fail-closed.yaml":
            break


def body_with_model_last(size: int) -> bytes:
    late = chat("x" * size)
    late["model"] = late.pop("model")
    assert list(late)[-1] == "model"
    return serialised(late)


async def send_in_chunks(scene: Scene, body: bytes, size: int) -> HttpResponse:
    """Send a body in chunks, without a content length."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]
            await asyncio.sleep(0.005)

    async with scene.session.post(CHAT, data=chunks()) as response:
        return HttpResponse(response.status, response.headers, await response.read())


async def test_the_sidecar_reads_a_whole_chunked_body(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=FAST))
    body = body_with_model_last(300_000)
    assert_whole(await send_in_chunks(scene, body, 50_000), body)


async def test_a_model_field_after_long_messages_is_found(launch: Launch) -> None:
    scene = await launch(Options(more_models=[OTHER], replica_arguments=FAST))
    for size in (131_000, 400_000, 3_000_000, 8_380_000):
        body = body_with_model_last(size)
        assert_whole(await scene.send(body), body)


async def test_the_sidecar_reads_only_the_start_of_a_body_beyond_8_mib(launch: Launch) -> None:
    scene = await launch(Options(more_models=[OTHER], replica_arguments=FAST))
    body = body_with_model_last(9_000_000)

    refused = (await scene.send(body)).error()
    assert refused["code"] == "invalid_request"
    assert str(HEAD_LIMIT) in refused["message"]
    assert "x-model" in refused["message"]

    assert_whole(await scene.send(body, headers={"x-model": "llama"}), body)
    body = serialised(chat("x" * 9_000_000))
    assert_whole(await scene.send(body), body)


@pytest.mark.parametrize("limit", [None, 4096, 131_072, 16 * 2**20])
async def test_listener_buffer_limits_do_not_block_a_body(
    launch: Launch, limit: int | None
) -> None:
    """Cover all listener limits, because the routes set their own."""

    def limited(config: Json) -> None:
        (listener,) = config["static_resources"]["listeners"]
        listener["per_connection_buffer_limit_bytes"] = limit
        if limit is None:
            del listener["per_connection_buffer_limit_bytes"]

    scene = await launch(Options(change_config=limited, replica_arguments=FAST))
    edges = (limit or 2**20, 2**20, 8 * 2**20)
    for size in {edge + more for edge in edges for more in MARGINS}:
        body = serialised(chat("x" * size))
        assert_whole(await scene.send(body), body)
    await scene.agree_on_inflight(0)


async def test_a_model_field_after_short_messages_is_found(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=FAST))
    late = chat("hello")
    late["model"] = late.pop("model")
    assert (await scene.send(late)).status == 200


async def test_buffered_bodies_are_read_whole_up_to_the_buffer_limit(launch: Launch) -> None:
    def buffered(config: Json) -> None:
        show_bodies(config, "BUFFERED")

    scene = await launch(Options(change_config=buffered, replica_arguments=FAST))
    body = serialised(chat("x" * 20_000))
    assert_whole(await scene.send(body), body)
    # Twice the route's buffer limit, because a body slightly above the limit may pass.
    assert (await scene.send(chat("x" * 8_380_000 * 2))).status == 413
    await scene.agree_on_inflight(0)


async def test_without_bodies_the_header_names_the_model(launch: Launch) -> None:
    def without_bodies(config: Json) -> None:
        show_bodies(config, "NONE")

    scene = await launch(
        Options(change_config=without_bodies, more_models=[OTHER], replica_arguments=FAST)
    )
    body = serialised(chat("x" * 100_000))
    assert_whole(await scene.send(body, headers={"x-model": "llama"}), body)
    assert (await scene.send(body)).error()["code"] == "invalid_request"
    assert (await scene.send(body, headers={"x-model": "who"})).status == 404
    lines = await scene.access_log(3)
    assert (lines[0]["route"], lines[0]["reason"]) == ("chosen", "no_prefix")


async def test_response_headers_and_trailers_may_be_sent_to_the_sidecar(launch: Launch) -> None:
    def everything(config: Json) -> None:
        for modes in processing_modes(config):
            modes |= {"response_header_mode": "SEND", "request_trailer_mode": "SEND"}

    scene = await launch(Options(change_config=everything, replica_arguments=FAST))
    body = serialised(chat("x" * 100_000))
    assert_whole(await scene.send(body), body)
    async with scene.stream(chat("hello", tokens=5)) as response:
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    await scene.agree_on_inflight(0)


async def test_streamed_bodies_are_refused_with_a_recommended_mode(launch: Launch) -> None:
    def streamed(config: Json) -> None:
        show_bodies(config, "STREAMED")

    scene = await launch(Options(change_config=streamed, replica_arguments=FAST))
    reply = await scene.send(chat("hello"))
    assert reply.status == 500
    assert "BUFFERED_PARTIAL" in reply.error()["message"]


async def test_bodies_sent_ahead_need_no_buffer_filter(launch: Launch) -> None:
    """Send large and chunked bodies through the sidecar."""

    def unbuffered(config: Json) -> None:
        show_bodies(config, "STREAMED")
        ext_proc_filter(config)["send_body_without_waiting_for_header_response"] = True

    scene = await launch(Options(change_config=unbuffered, replica_arguments=FAST))
    for size in (10, 66_000, 700_000):
        body = serialised(chat("x" * size))
        assert_whole(await scene.send(body), body)
    body = body_with_model_last(10_000)
    assert_whole(await send_in_chunks(scene, body, 1_000), body)
    await scene.agree_on_inflight(0)
    stats = await scene.envoy.stats("ext_proc")
    assert stats["http.llm.ext_proc.spurious_msgs_received"] == 0


async def test_a_form_is_routed_by_its_model_field(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=FAST))
    boundary = "b0undary"
    parts = [
        ("model", "", b"llama"),
        ("file", '; filename="speech.wav"', b"RIFF" + bytes(range(256)) * 2_000),
    ]
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode()
        + value
        + b"\r\n"
        for name, more, value in parts
    )
    body += f"--{boundary}--\r\n".encode()
    content_type = {"content-type": f"multipart/form-data; boundary={boundary}"}
    reply = await scene.send(body, path="/v1/audio/transcriptions", headers=content_type)
    assert_whole(reply, body)
