"""Both transports, over loopback, in this process. The client is grpcio."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.adapters.dispatcher import Dispatcher
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.schema import FlowControlSpec
from extproc.edge.ext_proc.service import ExternalProcessor
from extproc.edge.grpc.fast_server import FastServer
from extproc.edge.grpc.grpcio_server import GrpcioServer
from extproc.edge.grpc.health import SERVICE
from extproc.edge.grpc.server import Server
from extproc.lab.stack.processes import free_port
from tests.core.builders import TWO_ADDRESSES, model_spec
from tests.edge.envoy import (
    DUPLEX,
    STREAMED,
    Reply,
    chat_request,
    headers_without_path,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.edge.streams import Sidecar, eventually
from tests.extent import PATIENCE


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"127.0.0.1:{free_port()}" if request.param == "tcp" else f"unix:{tmp_path}/extproc.sock"


@pytest.fixture(params=[FastServer, GrpcioServer])
def transport(request: pytest.FixtureRequest) -> Transport:
    kind: Transport = request.param
    return kind


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar()


@pytest.fixture
async def server(address: str, sidecar: Sidecar, transport: Transport) -> AsyncIterator[Server]:
    server = transport(sidecar.processor)
    await server.start(address)
    await server.set_serving(True)
    yield server
    await server.stop(0)


@pytest.fixture
async def channel(address: str, server: Server) -> AsyncIterator[Any]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=unlimited) as channel:
        yield channel


Transport = Callable[[ExternalProcessor], Server]


class Stream:
    """The stream of one HTTP request, as Envoy opens it."""

    def __init__(self, channel: Any) -> None:
        self.call = channel.stream_stream(f"/{SERVICE}/Process")()

    async def send(self, message: bytes) -> Reply:
        """Send a message and wait for its reply."""
        await self.call.write(message)
        async with asyncio.timeout(PATIENCE):
            answer = await self.call.read()
        assert answer is not grpc.aio.EOF, await self.call.code()
        return Reply(answer)

    async def end(self) -> grpc.StatusCode:
        """End the client's half and wait for the server's end."""
        await self.call.done_writing()
        async with asyncio.timeout(PATIENCE):
            assert await self.call.read() is grpc.aio.EOF
            return await self.call.code()


async def routed(channel: Any, content: str = "hello") -> Stream:
    """Open a stream whose request was routed."""
    stream = Stream(channel)
    await stream.send(request_headers())
    reply = await stream.send(request_body(chat_request("llama", content)))
    assert reply.headers["x-target-endpoint"] in TWO_ADDRESSES
    return stream


async def test_serves_a_request_from_its_headers_to_its_end(channel: Any, sidecar: Sidecar) -> None:
    stream = await routed(channel)
    assert sidecar.in_flight == 1
    assert (await stream.send(response_trailers())).kind == "response_trailers"
    assert await stream.end() is grpc.StatusCode.OK
    await eventually(lambda: sidecar.in_flight == 0)


async def test_refusal_is_an_immediate_response(channel: Any) -> None:
    stream = Stream(channel)
    assert (await stream.send(request_headers("/nowhere"))).error == (404, "unknown_path")
    assert await stream.end() is grpc.StatusCode.OK


async def test_garbled_message_is_an_invalid_argument(channel: Any, sidecar: Sidecar) -> None:
    stream = await routed(channel)
    await stream.call.write(b"garbage")
    async with asyncio.timeout(PATIENCE):
        assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT
    await eventually(lambda: sidecar.in_flight == 0)
    await (await routed(channel)).end()


async def test_cancelled_stream_returns_its_lease(channel: Any, sidecar: Sidecar) -> None:
    kept, cancelled = await routed(channel), await routed(channel, "other")
    assert sidecar.in_flight == 2
    cancelled.call.cancel()
    await eventually(lambda: sidecar.in_flight == 1)
    await kept.end()
    await eventually(lambda: sidecar.in_flight == 0)


async def test_broken_connection_returns_all_its_leases(
    address: str, server: Server, sidecar: Sidecar
) -> None:
    channel = grpc.aio.insecure_channel(address)
    for _ in range(5):
        await routed(channel)
    assert sidecar.in_flight == 5
    await channel.close()
    await eventually(lambda: sidecar.in_flight == 0)


async def test_serves_many_streams_at_once(channel: Any, sidecar: Sidecar) -> None:
    streams = await asyncio.gather(*(routed(channel, f"chat {i}") for i in range(50)))
    assert sidecar.in_flight == 50
    assert await asyncio.gather(*(s.end() for s in streams)) == [grpc.StatusCode.OK] * 50
    await eventually(lambda: sidecar.in_flight == 0)


async def test_accepts_large_bodies(channel: Any) -> None:
    stream = Stream(channel)
    await stream.send(request_headers())
    reply = await stream.send(request_body(chat_request("llama", "x" * 16_000_000)))
    assert reply.headers["x-target-endpoint"] in TWO_ADDRESSES


async def test_drain_lets_open_streams_end_and_accepts_no_new_ones(
    channel: Any, server: Server, sidecar: Sidecar, address: str
) -> None:
    running = await routed(channel)
    draining = asyncio.create_task(server.stop(30))
    async with grpc.aio.insecure_channel(address) as another:

        async def refused() -> bool:
            late = Stream(another)
            with suppress(grpc.aio.AioRpcError):
                await late.call.write(request_headers())
                await late.call.done_writing()
            return await late.call.code() is grpc.StatusCode.UNAVAILABLE

        async with asyncio.timeout(PATIENCE):
            while not await refused():
                await asyncio.sleep(0.01)
    assert not draining.done()
    assert (await running.send(response_trailers())).kind == "response_trailers"
    assert await running.end() is grpc.StatusCode.OK
    async with asyncio.timeout(PATIENCE):
        await draining
    assert sidecar.in_flight == 0


@pytest.mark.parametrize("transport", [FastServer])
async def test_drain_does_not_wait_for_health_watches(
    channel: Any, server: Server, sidecar: Sidecar
) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    async with asyncio.timeout(PATIENCE):
        await server.stop(1000)
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE


async def test_stream_that_exceeds_the_grace_period_ends_and_returns_its_lease(
    channel: Any, server: Server, sidecar: Sidecar
) -> None:
    await routed(channel)
    await server.stop(0.01)
    await eventually(lambda: sidecar.in_flight == 0)


@pytest.mark.parametrize("service", ["", SERVICE, "readiness"])
async def test_health_reports_if_the_service_is_serving(
    service: str, channel: Any, server: Server
) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    serving = health_pb2.HealthCheckResponse
    assert (await health.Check(request)).status == serving.SERVING
    await server.set_serving(False)
    assert (await health.Check(request)).status == serving.NOT_SERVING


async def test_liveness_is_always_serving(channel: Any, server: Server) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for serving in (True, False):
        await server.set_serving(serving)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="liveness"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_stream_ends_with_unavailable_while_not_serving(
    channel: Any, server: Server, sidecar: Sidecar
) -> None:
    running = await routed(channel)
    await server.set_serving(False)
    early = Stream(channel)
    async with asyncio.timeout(PATIENCE):
        assert await early.call.code() is grpc.StatusCode.UNAVAILABLE
    assert sidecar.in_flight == 1
    await server.set_serving(True)
    await (await routed(channel)).end()
    assert (await running.send(response_trailers())).kind == "response_trailers"
    assert await running.end() is grpc.StatusCode.OK


async def test_stop_without_start_does_nothing(sidecar: Sidecar, transport: Transport) -> None:
    async with asyncio.timeout(PATIENCE):
        await transport(sidecar.processor).stop(0)


async def test_streams_bodies_back_as_they_arrive(channel: Any, sidecar: Sidecar) -> None:
    stream = Stream(channel)
    # The decision waits for the end of a shorter body, because trailers may follow.
    body = json.dumps(chat_request("llama", "x" * 100_000)).encode()
    first, rest = body[:HEAD_LIMIT], body[HEAD_LIMIT:]
    await stream.call.write(request_headers(mode=DUPLEX, response_mode=DUPLEX))
    reply = await stream.send(request_body(first, end=False))
    assert reply.headers["x-gateway-destination-endpoint"].split(",")[0] in TWO_ADDRESSES
    assert sidecar.in_flight == 1
    back = b""
    while len(back) < len(first):
        back += Reply(await stream.call.read()).streamed.body
    assert back == first
    last = (await stream.send(request_body(rest))).streamed
    assert (last.body, last.end_of_stream) == (rest, True)
    assert (await stream.send(response_headers())).kind == "response_headers"
    for part in (b"data: 1\n\n", b"data: 2\n\n"):
        assert (await stream.send(response_body(part))).streamed.body == part
    assert (await stream.send(response_body(b"", end=True))).streamed.end_of_stream
    assert await stream.end() is grpc.StatusCode.OK
    await eventually(lambda: sidecar.in_flight == 0)


async def asked_at_once(channel: Any, *messages: bytes) -> tuple[list[Reply], grpc.StatusCode]:
    """Act like NGINX Gateway Fabric: send all, end the client's half, then read to the end."""
    call = channel.stream_stream(f"/{SERVICE}/Process")()
    for message in messages:
        await call.write(message)
    await call.done_writing()
    async with asyncio.timeout(PATIENCE):
        replies = [Reply(answer) async for answer in call]
        return replies, await call.code()


@pytest.mark.parametrize("size", [10, 100_000, 5_000_000])
async def test_client_that_ends_its_half_first_gets_all_replies_and_the_status(
    channel: Any, sidecar: Sidecar, size: int
) -> None:
    body = request_body(chat_request("llama", "x" * size))
    replies, code = await asked_at_once(channel, headers_without_path(), body)
    assert code is grpc.StatusCode.OK
    assert [reply.kind for reply in replies] == ["request_headers", "request_body"]
    assert replies[0].headers["x-gateway-destination-endpoint"] in TWO_ADDRESSES
    await eventually(lambda: sidecar.in_flight == 0)


async def test_client_that_ends_its_half_first_gets_a_refusal(channel: Any) -> None:
    body = request_body(chat_request("gpt", "hello"))
    (reply,), code = await asked_at_once(channel, headers_without_path(), body)
    assert reply.error == (404, "model_not_found")
    assert code is grpc.StatusCode.OK
    (reply,), code = await asked_at_once(channel, headers_without_path(end=True))
    assert reply.headers["x-gateway-destination-endpoint"] in TWO_ADDRESSES
    assert code is grpc.StatusCode.OK


@pytest.fixture
async def busy(address: str, transport: Transport) -> AsyncIterator[tuple[Any, Sidecar, Stream]]:
    """A channel to a server whose only room one stream uses."""
    spec = model_spec(endpoints=TWO_ADDRESSES[:1])
    flow_control = FlowControlSpec.model_validate({"maxInflight": 1})
    sidecar = Sidecar(spec.model_copy(update={"flow_control": flow_control}), flow=True)
    dispatcher = Dispatcher(sidecar.flow)
    server = transport(sidecar.processor)
    await server.start(address)
    await server.set_serving(True)
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel, sidecar, await routed(channel)
    await server.stop(0)
    dispatcher.close()


async def test_client_that_ends_its_half_first_may_have_to_wait_for_room(
    busy: tuple[Any, Sidecar, Stream],
) -> None:
    channel, sidecar, running = busy
    body = request_body(chat_request("llama", "hello"))
    waiting = asyncio.create_task(asked_at_once(channel, headers_without_path(), body))
    await eventually(lambda: sidecar.flow.waiting == 1)
    await running.send(response_headers())  # so that the waiting client's end has arrived, too
    assert sidecar.flow.waiting == 1
    await running.end()
    replies, code = await waiting
    assert code is grpc.StatusCode.OK
    assert [reply.kind for reply in replies] == ["request_headers", "request_body"]
    assert replies[0].headers["x-gateway-destination-endpoint"] == TWO_ADDRESSES[0]
    await eventually(lambda: sidecar.in_flight == 0)


async def test_client_that_ends_its_half_first_may_leave_the_queue(
    busy: tuple[Any, Sidecar, Stream],
) -> None:
    channel, sidecar, running = busy
    body = request_body(chat_request("llama", "hello"))
    waiting = asyncio.create_task(asked_at_once(channel, headers_without_path(), body))
    await eventually(lambda: sidecar.flow.waiting == 1)
    await running.send(response_headers())
    waiting.cancel()
    await eventually(lambda: sidecar.flow.waiting == 0)


async def test_envoy_leaves_the_queue_when_it_ends_its_half(
    busy: tuple[Any, Sidecar, Stream],
) -> None:
    """Envoy does so if its client has left."""
    channel, sidecar, _ = busy
    call = channel.stream_stream(f"/{SERVICE}/Process")()
    await call.write(request_headers(ahead=True, mode=STREAMED))
    await call.write(request_body(chat_request("llama", "hello")))
    await eventually(lambda: sidecar.flow.waiting == 1)
    await call.done_writing()
    await eventually(lambda: sidecar.flow.waiting == 0)
    assert sidecar.in_flight == 1


async def test_unknown_method_is_unimplemented(channel: Any) -> None:
    call = channel.stream_stream(f"/{SERVICE}/Other")()
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_port_in_use_raises_os_error(sidecar: Sidecar, transport: Transport) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            await transport(sidecar.processor).start(address)


async def test_two_servers_do_not_share_an_address(
    sidecar: Sidecar, transport: Transport, address: str
) -> None:
    first, second = transport(sidecar.processor), transport(sidecar.processor)
    await first.start(address)
    try:
        with pytest.raises(OSError, match="cannot listen"):
            await second.start(address)
    finally:
        await first.stop(0)
        await second.stop(0)
