"""Bodies, headers and streams of messages near the limits: delivered whole or clearly refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter

from extproc.edge.grpc.calls import Method
from extproc.edge.grpc.health import SERVICE
from extproc.edge.wire.external_processor_pb2 import ProcessingResponse
from tests.core.builders import model_spec
from tests.e2e.scene import HttpResponse, Launch, Options, Scene
from tests.edge.envoy import DUPLEX, request_body, request_headers
from tests.edge.grpc_client import GrpcClient
from tests.edge.streams import Sidecar
from tests.extent import PATIENCE
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, WHOLE, streaming

QUICK = ("--time-scale", "200")
PLAIN = "/v1/embeddings"
"""A path whose requests cost the stand-in nothing, however long they are."""

BUFFER, THRESHOLD, LIMIT = 32_768, 131_072, 8 * 2**20
"""Sizes from envoy.yaml: the buffer, the length from which Envoy sends only a part of a body, and
the longest body without a length that it sends whole."""

AROUND = [edge + off for edge in (BUFFER, 2 * BUFFER, THRESHOLD) for off in (-1, 0, 1)]
MEBIBYTES = [size * 2**20 for size in (1, 4, 64)]
MESSAGES = 10_000


def sized(size: int) -> bytes:
    """Return a body of exactly so many bytes."""
    empty = json.dumps({"model": "llama", "input": ""}).encode()
    return empty[:-2] + b"x" * (size - len(empty)) + empty[-2:]


async def send_chunked(scene: Scene, body: bytes, size: int = 100_000) -> HttpResponse:
    """Send a body in chunks, without a length."""

    async def pieces() -> object:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async with scene.session.post(PLAIN, data=pieces()) as reply:
        return HttpResponse(reply.status, reply.headers, await reply.read())


def is_whole(reply: HttpResponse, body: bytes) -> bool:
    """True if the replica received every byte."""
    digest = hashlib.md5(body).hexdigest()
    return reply.status == 200 and reply.headers["x-stand-in-body-md5"] == digest


async def test_size_edges(launch: Launch, report: Report) -> None:
    """Every body is routed whole, or refused with a clear 4xx."""
    scene = await launch(Options(replica_arguments=PACE))
    sizes = [*AROUND, LIMIT - 1, LIMIT, *MEBIBYTES]
    report.tried(
        f"{len(sizes)} sizes from {min(sizes):,} bytes to 64 MiB, with and without a length, "
        f"under {CLIENTS} streams"
    )
    refused, lost = list[int](), list[str]()
    async with streaming(scene) as streams:
        for size in sizes:
            body = sized(size)
            ways = {
                "with a length": scene.send(body, path=PLAIN),
                "without": send_chunked(scene, body),
            }
            for way, sending in ways.items():
                try:
                    reply = await asyncio.wait_for(sending, PATIENCE)
                except TimeoutError:
                    lost.append(f"{size:,} {way} has no response")
                    continue
                if 400 <= reply.status < 500:
                    refused.append(size)
                elif not is_whole(reply, body):
                    lost.append(f"{size:,} {way}: status {reply.status}")
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        bodies=len(lost),
        what="; ".join(
            [f"of {streams.whole} streams", *lost, f"{len(refused)} bodies refused with 4xx"]
        ),
    )
    assert lost == []
    assert streams.outcomes.keys() == {WHOLE}
    await scene.agree_on_inflight(0)


async def test_size_just_beyond(launch: Launch, report: Report) -> None:
    """A body without a length that ends just beyond 8 MiB is refused with 413."""
    scene = await launch(Options(replica_arguments=QUICK))
    report.tried(f"{LIMIT + 1:,} bytes in chunks, the last byte in its own packet")
    body = sized(LIMIT + 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    head = f"POST {PLAIN} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode() + b"%x\r\n%s\r\n" % (LIMIT, body[:-1]))
    await writer.drain()
    await asyncio.sleep(0.5)
    report.lost("the request: it gets no response")
    writer.write(b"1\r\n%s\r\n0\r\n\r\n" % body[-1:])
    status = await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.close()
    report.lost(f"nothing: {status.decode().strip()}")
    assert b" 413 " in status
    await scene.agree_on_inflight(0)


async def test_size_headers(launch: Launch, report: Report) -> None:
    """Headers of up to 59 kB are routed; Envoy answers 431 to larger ones."""
    scene = await launch(Options(replica_arguments=PACE))
    report.tried(f"1 to 70 headers of 1 kB, and 80 of 0.5 kB, under {CLIENTS} streams")
    body = sized(100)
    statuses = {}
    async with streaming(scene) as streams:
        for kilobytes in (1, 8, 30, 59, 61, 70):
            # Several headers, because a client may not send a longer line.
            lines = {f"x-large-{i}": "v" * 1_000 for i in range(kilobytes)}
            statuses[kilobytes] = (await scene.send(body, path=PLAIN, headers=lines)).status
        many = {f"x-many-{i}": "v" * 500 for i in range(80)}
        statuses[0] = (await scene.send(body, path=PLAIN, headers=many)).status
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; statuses by kB of headers: {statuses}",
    )
    # The stand-in accepts at most 8 kB in a line, and 64 kB in all.
    assert all(statuses[kb] == 200 for kb in (0, 1, 8, 30))
    assert statuses[61] == statuses[70] == 431
    assert statuses[59] in (200, 431)
    assert streams.outcomes.keys() == {WHOLE}


def test_size_messages(report: Report) -> None:
    """Each message of a long full-duplex stream gets a reply, and the body returns whole."""
    report.tried(f"{MESSAGES:,} body messages on one full-duplex stream, over HTTP/2 in process")
    sidecar = Sidecar(model_spec("llama"))
    process = f"/{SERVICE}/Process"
    client = GrpcClient({process.encode(): Method(sidecar.processor.open)})
    stream = client.call(process)
    client.send(stream, request_headers(mode=DUPLEX))
    head = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "x" * 200}]})
    pieces = [head[:-1].encode(), *[b" "] * (MESSAGES - 2), b"}"]
    for number, piece in enumerate(pieces):
        answer = client.send(stream, request_body(piece, end=number == MESSAGES - 1))
    replies = [ProcessingResponse.FromString(message) for message in answer.messages]
    returned = b"".join(
        one.request_body.response.body_mutation.streamed_response.body
        for one in replies
        if one.HasField("request_body")
    )
    report.lost(bytes_of_the_body=len(b"".join(pieces)) - len(returned))
    assert returned == b"".join(pieces)
    client.h2.end_stream(stream)
    client.flush()
    assert sidecar.in_flight == 0


async def test_size_pieces(launch: Launch, report: Report) -> None:
    """A body in ten thousand chunks arrives whole, through the sidecar or past it."""
    report.tried(
        f"{MESSAGES:,} chunks under {CLIENTS} streams, for each of two Envoy configurations"
    )
    body = sized(MESSAGES * 20)
    whole, outcomes = 0, Counter[str]()
    for config in ("envoy.yaml", "endpoint-picker.yaml"):
        scene = await launch(Options(config=config, replica_arguments=PACE))
        async with streaming(scene) as streams:
            whole += is_whole(await asyncio.wait_for(send_chunked(scene, body, 20), PATIENCE), body)
        outcomes += streams.outcomes
        await scene.agree_on_inflight(0)
        await scene.sidecar.kill()
        await scene.envoy.kill()
    report.lost(
        failed_or_cut=outcomes.total() - outcomes[WHOLE],
        bodies=2 - whole,
        what=f"of {outcomes[WHOLE]} streams",
    )
    assert whole == 2
    assert outcomes.keys() == {WHOLE}
