"""Bodies of every size pass untouched, in every processing mode that can route by body."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.e2e.scene import (
    CHAT,
    CONFIGS,
    Json,
    Launch,
    Options,
    Reply,
    Scene,
    chat,
    ext_proc_filter,
    processing_modes,
    show_bodies,
)
from tests.extent import PATIENCE

OTHER = {"name": "other", "endpoints": ["127.0.0.1:9"]}
FAST = ("--time-scale", "200", "--kv-tokens", "8000000", "--max-model-len", "8000000")
HEAD_LIMIT = 65_536


def serialised(body: Json) -> bytes:
    return json.dumps(body).encode()


def assert_whole(reply: Reply, sent: bytes) -> None:
    assert reply.status == 200
    assert reply.headers["x-stand-in-body-bytes"] == str(len(sent))
    assert reply.headers["x-stand-in-body-md5"] == hashlib.md5(sent).hexdigest()


@pytest.mark.parametrize("size", [10, 30_000, 33_000, 66_000, 700_000, 8_000_000])
async def test_a_body_arrives_byte_for_byte_at_its_prefixs_home(launch: Launch, size: int) -> None:
    scene = await launch(Options(replica_arguments=FAST))
    home = (await scene.send(chat("x" * 200))).replica
    body = serialised(chat("x" * 200 + "y" * size))
    reply = await scene.send(body)
    assert_whole(reply, body)
    assert reply.replica == home


CUT_SIZES = (20_000, 33_000, 40_000, 64_000, 66_000, 100_000, 128_000, 135_000, 200_000, 700_000)


async def send_in_two_parts(scene: Scene, body: bytes, cut: int) -> str:
    """The head of the answer to a body that comes with a pause in between."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[:cut])
    # Long enough for the sidecar to answer the headers in between.
    await asyncio.sleep(0.02)
    writer.write(body[cut:])
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    writer.close()
    return answer.decode()


@pytest.mark.parametrize("config", CONFIGS)
async def test_a_body_is_whole_however_it_is_cut_into_packets(launch: Launch, config: str) -> None:
    """Envoy loses the end of a body that ends in the read that overflows its buffer (1.38 to
    1.40), and garbles one that it shows in part on a route with retries.
    """
    scene = await launch(Options(config=config, replica_arguments=FAST))
    for sidecar_is_up in (True, False):
        for size in CUT_SIZES:
            body = serialised(chat("x" * size))
            for cut in (len(body) // 2, 20_000, 32_000, len(body) - 1):
                answer = await send_in_two_parts(scene, body, cut)
                assert " 200 " in answer, (size, cut, answer)
                assert hashlib.md5(body).hexdigest() in answer, (size, cut, answer)
        if sidecar_is_up:
            await scene.agree_on_inflight(0)
            await scene.sidecar.kill()
        if config == "fail-closed.yaml":
            break


def naming_its_model_late(size: int) -> bytes:
    late = chat("x" * size)
    late["model"] = late.pop("model")
    assert list(late)[-1] == "model"
    return serialised(late)


async def trickled(scene: Scene, body: bytes, size: int) -> Reply:
    """Sends a body without its length, in pieces."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]
            await asyncio.sleep(0.005)

    async with scene.session.post(CHAT, data=chunks()) as response:
        return Reply(response.status, response.headers, await response.read())


async def test_a_chunked_body_is_seen_whole(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=FAST))
    body = naming_its_model_late(300_000)
    assert_whole(await trickled(scene, body, 50_000), body)


async def test_a_model_behind_long_messages_is_found(launch: Launch) -> None:
    scene = await launch(Options(more_models=[OTHER], replica_arguments=FAST))
    for size in (131_000, 400_000, 3_000_000, 8_380_000):
        body = naming_its_model_late(size)
        assert_whole(await scene.send(body), body)


async def test_the_sidecar_sees_only_the_head_of_a_body_beyond_8_mib(launch: Launch) -> None:
    scene = await launch(Options(more_models=[OTHER], replica_arguments=FAST))
    body = naming_its_model_late(9_000_000)

    refused = (await scene.send(body)).error()
    assert refused["code"] == "invalid_request"
    assert str(HEAD_LIMIT) in refused["message"]
    assert "x-model" in refused["message"]

    assert_whole(await scene.send(body, headers={"x-model": "llama"}), body)
    body = serialised(chat("x" * 9_000_000))
    assert_whole(await scene.send(body), body)


@pytest.mark.parametrize("limit", [None, 4096, 131_072, 16 * 2**20])
async def test_no_limit_of_the_listener_hangs_a_body(launch: Launch, limit: int | None) -> None:
    """The routes carry limits of their own."""

    def limited(config: Json) -> None:
        (listener,) = config["static_resources"]["listeners"]
        listener["per_connection_buffer_limit_bytes"] = limit
        if limit is None:
            del listener["per_connection_buffer_limit_bytes"]

    scene = await launch(Options(change_config=limited, replica_arguments=FAST))
    edges = (limit or 2**20, 2**20, 8 * 2**20)
    for size in {edge + more for edge in edges for more in (-300, 0, 300, 4096)}:
        body = serialised(chat("x" * size))
        assert_whole(await scene.send(body), body)
    await scene.agree_on_inflight(0)


async def test_a_model_after_short_messages_is_found(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=FAST))
    late = chat("hello")
    late["model"] = late.pop("model")
    assert (await scene.send(late)).status == 200


async def test_buffered_bodies_are_read_whole_and_refused_beyond_the_buffer(launch: Launch) -> None:
    def buffered(config: Json) -> None:
        show_bodies(config, "BUFFERED")

    scene = await launch(Options(change_config=buffered, replica_arguments=FAST))
    body = serialised(chat("x" * 20_000))
    assert_whole(await scene.send(body), body)
    # Twice what the route lets Envoy hold; a little more may pass.
    assert (await scene.send(chat("x" * 8_380_000 * 2))).status == 413
    await scene.agree_on_inflight(0)


async def test_without_bodies_the_header_names_the_model(launch: Launch) -> None:
    def unseen(config: Json) -> None:
        show_bodies(config, "NONE")

    scene = await launch(Options(change_config=unseen, more_models=[OTHER], replica_arguments=FAST))
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


async def test_streamed_bodies_are_refused_with_the_remedy(launch: Launch) -> None:
    def streamed(config: Json) -> None:
        show_bodies(config, "STREAMED")

    scene = await launch(Options(change_config=streamed, replica_arguments=FAST))
    reply = await scene.send(chat("hello"))
    assert reply.status == 500
    assert "BUFFERED_PARTIAL" in reply.error()["message"]


async def test_bodies_that_come_ahead_need_no_buffer_before(launch: Launch) -> None:
    """Large and trickled ones go through the sidecar then."""

    def unbuffered(config: Json) -> None:
        show_bodies(config, "STREAMED")
        ext_proc_filter(config)["send_body_without_waiting_for_header_response"] = True

    scene = await launch(Options(change_config=unbuffered, replica_arguments=FAST))
    for size in (10, 66_000, 700_000):
        body = serialised(chat("x" * size))
        assert_whole(await scene.send(body), body)
    body = naming_its_model_late(10_000)
    assert_whole(await trickled(scene, body, 1_000), body)
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
