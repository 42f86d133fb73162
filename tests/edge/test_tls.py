"""TLS on the gRPC port, over loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.edge.grpcio_server import GrpcioServer
from extproc.edge.tls import KeyPair
from extproc.lab.processes import free_port
from tests.edge.streams import Sidecar

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


@pytest.fixture
async def address(pair: KeyPair) -> AsyncIterator[str]:
    """Where a server with that pair listens."""
    address = f"127.0.0.1:{free_port()}"
    server = GrpcioServer(Sidecar().processor, pair)
    await server.start(address)
    await server.set_serving(True)
    yield address
    await server.stop(0)


async def is_serving(
    address: str, ca: trustme.CA = CA, *, shown: trustme.LeafCert | None = None
) -> bool:
    """Asks on a new connection, trusting this CA and showing that certificate."""
    own = (shown.private_key_pem.bytes(), shown.cert_chain_pems[0].bytes()) if shown else ()
    credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes(), *own)
    # Without it a second channel would share the first one's connection.
    alone = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options=alone) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_who_trusts_the_certificate_is_served(address: str) -> None:
    assert await is_serving(address)
    assert not await is_serving(address, trustme.CA())


async def test_a_renewed_certificate_is_what_new_connections_get(
    address: str, pair: KeyPair
) -> None:
    assert await is_serving(address)
    other = trustme.CA()
    write(pair, other)
    assert await is_serving(address, other)
    assert not await is_serving(address)


@pytest.mark.parametrize("bad", ["", "no PEM at all"])
async def test_a_bad_renewal_leaves_the_last_good_one(
    address: str, pair: KeyPair, bad: str
) -> None:
    pair.certificate.write_text(bad)
    assert await is_serving(address)
    pair.key.unlink()
    assert await is_serving(address)


def test_a_pair_that_does_not_fit_is_refused(pair: KeyPair, tmp_path: Path) -> None:
    other = KeyPair(tmp_path / "other.crt", tmp_path / "other.key")
    write(other)
    with pytest.raises(OSError, match=r"tls\.crt and .*other\.key: key values mismatch"):
        KeyPair(pair.certificate, other.key).read()
    with pytest.raises(OSError, match="No such file"):
        KeyPair(tmp_path / "absent.crt", pair.key).read()
    pair.certificate.write_text("nothing")
    with pytest.raises(OSError, match=r"tls\.crt and .*tls\.key: "):
        pair.read()


class TestClientsThatMustShowACertificate:
    clients = trustme.CA()

    @pytest.fixture
    def pair(self, pair: KeyPair, tmp_path: Path) -> KeyPair:
        self.clients.cert_pem.write_to_path(tmp_path / "clients.crt")
        return replace(pair, client_ca=tmp_path / "clients.crt")

    async def test_are_served_with_one_of_the_right_ca(self, address: str) -> None:
        assert await is_serving(address, shown=self.clients.issue_cert("envoy"))

    async def test_are_turned_away_without_one(self, address: str) -> None:
        assert not await is_serving(address)

    async def test_are_turned_away_with_one_of_another_ca(self, address: str) -> None:
        assert not await is_serving(address, shown=trustme.CA().issue_cert("envoy"))

    async def test_are_known_by_the_ca_that_is_there_now(self, address: str, pair: KeyPair) -> None:
        other = trustme.CA()
        assert pair.client_ca is not None
        other.cert_pem.write_to_path(pair.client_ca)
        assert await is_serving(address, shown=other.issue_cert("envoy"))
        assert not await is_serving(address, shown=self.clients.issue_cert("envoy"))

    async def test_are_known_by_the_last_good_ca(self, address: str, pair: KeyPair) -> None:
        assert pair.client_ca is not None
        pair.client_ca.write_text("nothing")
        assert await is_serving(address, shown=self.clients.issue_cert("envoy"))
        assert not await is_serving(address)

    def test_need_a_ca_that_is_one(self, pair: KeyPair) -> None:
        assert pair.client_ca is not None
        pair.client_ca.write_text("nothing")
        with pytest.raises(OSError, match=r"clients\.crt: "):
            pair.read()
