"""The server of `--transport grpcio`: the ext_proc service and gRPC health over grpc.aio."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health

from extproc.adapters.observability.logs import fields
from extproc.edge.ext_proc.service import ExternalProcessor
from extproc.edge.grpc.health import SERVICE, statuses
from extproc.edge.listening import UNIX, CannotListen, check_free
from extproc.edge.tls import KeyPair, Pem

log = logging.getLogger("extproc.tls")

_OPTIONS = (
    # Envoy's own buffers limit the size of bodies.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Let a burst wait. By default, gRPC refuses some calls when 1,000 wait, and Envoy would send
    # their requests upstream without a decision.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
    # A second sidecar on the same port must fail with an error instead of sharing it.
    ("grpc.so_reuseport", 0),
    # Envoy's keepalive pings on long, silent streams are not abuse.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # Unread bytes of each stream. By default, the window grows with the speed of the peer to
    # megabytes for each stream, and bodies that only pass through would pile up: 40 bodies of
    # 10 MB at once took 280 MB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 262_144),
)


class GrpcioServer:
    """The server of `--transport grpcio`, with TLS if there is a key pair."""

    def __init__(self, processor: ExternalProcessor, key_pair: KeyPair | None = None) -> None:
        self._processor = processor
        self._key_pair = key_pair
        self._serving = False
        self._server = grpc.aio.server(options=_OPTIONS)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        method = grpc.stream_stream_rpc_method_handler(self._process)
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Process": method})
        self._server.add_generic_rpc_handlers((handler,))

    async def start(self, address: str) -> None:
        """Bind HOST:PORT or unix:PATH. Raises OSError if that fails or the key pair is bad.

        Until `set_serving(True)`, each stream of the service ends at once with UNAVAILABLE.
        """
        try:
            if address.startswith(UNIX):
                check_free(address.removeprefix(UNIX))
            if self._key_pair is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, _credentials(self._key_pair))
        except (OSError, RuntimeError):
            # gRPC's own message names neither cause nor remedy.
            why = "the address is in use, or cannot be bound"
            raise CannotListen(address, why) from None
        await self._server.start()
        await self.set_serving(False)

    async def set_serving(self, serving: bool) -> None:
        """Accept or refuse new streams of the service, and report that by gRPC health."""
        self._serving = serving
        for service, status in statuses(serving=serving).items():
            await self._health.set(service, status)

    async def stop(self, grace: float) -> None:
        """Accept no new streams. Open ones have `grace` seconds to end."""
        await self._server.stop(grace)

    async def _process(
        self, _: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        if not self._serving:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not ready, or draining")
        # Read and write here instead of in an async generator: after a cancellation, the `finally`
        # of a generator, which returns the lease, would run only at the next garbage collection.
        writer = _Writer(context)
        session = self._processor.open(writer.send, _metadata(context))
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                await writer.write(session.receive(message))
            while session.owes_replies:
                await writer.written()
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        finally:
            # An aborted request appears here as a cancellation.
            session.close()


class _Writer:
    """Writes messages to one stream, in the order of the calls."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._unwritten: deque[bytes] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self._sent = asyncio.Event()

    def send(self, messages: Sequence[bytes]) -> None:
        """Write messages soon."""
        self._unwritten += messages
        self._sent.set()
        task = asyncio.create_task(self._flush_if_open())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def write(self, messages: Sequence[bytes]) -> None:
        """Write messages, after those that are sent already."""
        self._unwritten += messages
        await self._flush()

    async def written(self) -> None:
        """Wait until messages are sent, and write them."""
        await self._sent.wait()
        self._sent.clear()
        await self._flush()

    async def _flush(self) -> None:
        async with self._lock:
            while self._unwritten:
                await self._context.write(self._unwritten.popleft())

    async def _flush_if_open(self) -> None:
        # The stream may have ended since.
        with suppress(grpc.RpcError, asyncio.CancelledError):
            await self._flush()


def _metadata(context: grpc.aio.ServicerContext[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        name.encode(): value.encode() if isinstance(value, str) else value
        for name, value in context.invocation_metadata() or ()
    }


def _credentials(pair: KeyPair) -> grpc.ServerCredentials:
    """Return credentials that give each new connection the current content of the files.

    Raises OSError if the files are bad at the start. Later, the last good pair stays in force.
    """
    current = pair.read()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal current
        try:
            latest = pair.read()
        except OSError as error:
            log.error("certificate refused, the last good stays", extra=fields(why=error))
            return None
        if latest == current:
            return None
        current = latest
        return _configuration(latest)

    client_must_authenticate = pair.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(
        _configuration(current), renewed, client_must_authenticate
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.client_ca)
