"""TLS on the gRPC port, over loopback."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.edge.ext_proc.service import ExternalProcessor
from extproc.edge.grpc.fast_server import FastServer
from extproc.edge.grpc.grpcio_server import GrpcioServer
from extproc.edge.grpc.server import Server
from extproc.edge.tls import KeyPair
from extproc.lab.stack.processes import free_port
from tests.edge.streams import Sidecar
from tests.extent import PATIENCE

CA = trustme.CA()


def write(pair: KeyPair, ca: trustme.CA = CA) -> None:
    issued = ca.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(pair.certificate)
    issued.private_key_pem.write_to_path(pair.key)


@pytest.fixture
def pair(tmp_path: Path) -> KeyPair:
    pair = KeyPair(tmp_path / "tls.crt", tmp_path / "tls.key")
    write(pair)
    return pair


Transport = Callable[[ExternalProcessor, KeyPair], Server]


@pytest.fixture(params=[FastServer, GrpcioServer])
def transport(request: pytest.FixtureRequest) -> Transport:
    kind: Transport = request.param
    return kind


@pytest.fixture
async def address(pair: KeyPair, transport: Transport) -> AsyncIterator[str]:
    """Start a server with this key pair and yield its address."""
    address = f"127.0.0.1:{free_port()}"
    server = transport(Sidecar().processor, pair)
    await server.start(address)
    await server.set_serving(True)
    yield address
    await server.stop(0)


async def is_serving(
    address: str, ca: trustme.CA = CA, *, shown: trustme.LeafCert | None = None
) -> bool:
    """Call health on a new connection, with this trusted CA and this client certificate."""
    own = (shown.private_key_pem.bytes(), shown.cert_chain_pems[0].bytes()) if shown else ()
    credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes(), *own)
    # Without it a second channel would share the first one's connection.
    alone = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options=alone) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_serves_clients_that_trust_the_certificate(address: str) -> None:
    assert await is_serving(address)
    assert not await is_serving(address, trustme.CA())


async def test_new_connections_get_the_renewed_certificate(address: str, pair: KeyPair) -> None:
    assert await is_serving(address)
    other = trustme.CA()
    write(pair, other)
    assert await is_serving(address, other)
    assert not await is_serving(address)


@pytest.mark.parametrize("bad", ["", "no PEM at all"])
async def test_keeps_the_last_good_certificate_after_a_bad_renewal(
    address: str, pair: KeyPair, bad: str
) -> None:
    pair.certificate.write_text(bad)
    assert await is_serving(address)
    pair.key.unlink()
    assert await is_serving(address)


def test_refuses_a_key_that_does_not_match_the_certificate(pair: KeyPair, tmp_path: Path) -> None:
    other = KeyPair(tmp_path / "other.crt", tmp_path / "other.key")
    write(other)
    with pytest.raises(OSError, match=r"tls\.crt and .*other\.key: key values mismatch"):
        KeyPair(pair.certificate, other.key).read()
    with pytest.raises(OSError, match="No such file"):
        KeyPair(tmp_path / "absent.crt", pair.key).read()
    pair.certificate.write_text("nothing")
    with pytest.raises(OSError, match=r"tls\.crt and .*tls\.key: "):
        pair.read()


class TestClientCertificates:
    clients = trustme.CA()

    @pytest.fixture
    def pair(self, pair: KeyPair, tmp_path: Path) -> KeyPair:
        self.clients.cert_pem.write_to_path(tmp_path / "clients.crt")
        return replace(pair, client_ca=tmp_path / "clients.crt")

    async def test_accepts_one_of_the_right_ca(self, address: str) -> None:
        assert await is_serving(address, shown=self.clients.issue_cert("envoy"))

    async def test_refuses_clients_without_one(self, address: str) -> None:
        assert not await is_serving(address)

    async def test_refuses_one_of_another_ca(self, address: str) -> None:
        assert not await is_serving(address, shown=trustme.CA().issue_cert("envoy"))

    async def test_are_checked_against_the_renewed_ca(self, address: str, pair: KeyPair) -> None:
        other = trustme.CA()
        assert pair.client_ca is not None
        other.cert_pem.write_to_path(pair.client_ca)
        assert await is_serving(address, shown=other.issue_cert("envoy"))
        assert not await is_serving(address, shown=self.clients.issue_cert("envoy"))

    async def test_are_checked_against_the_last_good_ca(self, address: str, pair: KeyPair) -> None:
        assert pair.client_ca is not None
        pair.client_ca.write_text("nothing")
        assert await is_serving(address, shown=self.clients.issue_cert("envoy"))
        assert not await is_serving(address)

    def test_refuses_a_ca_file_without_a_certificate(self, pair: KeyPair) -> None:
        assert pair.client_ca is not None
        pair.client_ca.write_text("nothing")
        with pytest.raises(OSError, match=r"clients\.crt: "):
            pair.read()


class Lines(logging.Handler):
    """The logged lines of level error or above."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)


@pytest.mark.parametrize("transport", [FastServer])
class TestFastTransport:
    async def test_offers_http2_and_no_tls_older_than_1_2(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cadata=CA.cert_pem.bytes().decode())
        context.set_alpn_protocols(["http/1.1", "h2"])
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        found = writer.get_extra_info("ssl_object")
        assert found.selected_alpn_protocol() == "h2"
        writer.close()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, OSError)):
            await asyncio.open_connection(host, int(port), ssl=context)

    async def test_logs_a_bad_renewal_once_for_many_connections(
        self, address: str, pair: KeyPair
    ) -> None:
        lines = Lines()
        logging.getLogger("extproc.tls").addHandler(lines)
        try:
            good = pair.certificate.read_text()
            for bad in ("no PEM at all", "nor this"):
                pair.certificate.write_text(bad)
                for _ in range(3):
                    assert await is_serving(address)
            pair.certificate.write_text(good)
            assert await is_serving(address)
            pair.key.unlink()
            for _ in range(3):
                assert await is_serving(address)
        finally:
            logging.getLogger("extproc.tls").removeHandler(lines)
        assert len(lines.lines) == 3

    async def test_closes_connections_without_tls(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100))
        async with asyncio.timeout(PATIENCE):
            assert b"HTTP" not in await reader.read()
        writer.close()
        assert await is_serving(address)

    async def test_refuses_a_bad_pair_at_the_start(
        self, pair: KeyPair, transport: Transport
    ) -> None:
        pair.key.write_text("no key")
        server = transport(Sidecar().processor, pair)
        with pytest.raises(OSError, match=r"tls\.crt and .*tls\.key: "):
            await server.start(f"127.0.0.1:{free_port()}")
