"""Carries the ext_proc service over grpc.aio, with gRPC health beside it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health

from extproc.adapters.observability.logs import fields
from extproc.edge.ext_proc.service import ExternalProcessor
from extproc.edge.grpc.health import SERVICE, statuses
from extproc.edge.grpc.server import UNIX, check_free
from extproc.edge.tls import KeyPair, Pem

log = logging.getLogger("extproc.tls")

_OPTIONS = (
    # Bodies are as large as Envoy's buffer allows, and that is Envoy's to say.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A burst waits its turn: beyond 1,000 waiting calls gRPC would turn some away,
    # and Envoy would send their requests on without a decision.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
    # A second sidecar on the port must fail loudly, not share it.
    ("grpc.so_reuseport", 0),
    # An Envoy that sends keepalive pings while streams are long and quiet is no abuse.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # Bytes of each stream that may lie here unread. By default the window grows with the
    # speed of the peer, to megabytes a stream, and bodies that only pass through us would
    # pile up: 40 of 10 MB at once took 280 MB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 262_144),
)


class GrpcioServer:
    """Listens once started, with TLS if there is a key pair; drains on stop."""

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
        """Binds HOST:PORT or unix:PATH. Raises OSError where that fails, or the key pair is bad.

        Until `set_serving(True)`, a stream of the service ends at once with UNAVAILABLE.
        """
        try:
            if address.startswith(UNIX):
                check_free(address.removeprefix(UNIX))
            if self._key_pair is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, _credentials(self._key_pair))
        except (OSError, RuntimeError):
            # gRPC's own words name neither cause nor remedy.
            raise OSError(f"cannot listen on {address}: in use, or not to be bound") from None
        await self._server.start()
        await self.set_serving(False)

    async def set_serving(self, serving: bool) -> None:
        """What gRPC health says, for the server as a whole and for the service; we live anyway."""
        self._serving = serving
        for service, status in statuses(serving=serving).items():
            await self._health.set(service, status)

    async def stop(self, grace: float) -> None:
        """Takes no new streams; those that run have `grace` seconds to end."""
        await self._server.stop(grace)

    async def _process(
        self, _: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        if not self._serving:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not ready, or draining")
        # Reader and writer, not an async generator: a cancelled generator waits for
        # the garbage collector before its `finally` runs, and the lease with it.
        session = self._processor.open()
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                for answer in session.receive(message):
                    await context.write(answer)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        finally:
            # Also on cancellation, which is how an aborted request shows here.
            session.close()


def _credentials(pair: KeyPair) -> grpc.ServerCredentials:
    """Credentials that follow the files: each new connection gets what is in them.

    Raises OSError if they are bad at the start; later the last good pair stays.
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

    must_show_one = pair.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(_configuration(current), renewed, must_show_one)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.client_ca)
