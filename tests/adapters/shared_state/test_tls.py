"""TLS between sidecar and server, also with client certificates.

The Valkey of the tests has no TLS, so a proxy in front of it ends the connections.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trustme

from extproc.adapters.shared_state.server import SharedStateServer
from extproc.lab.stack.processes import until
from extproc.lab.stack.valkey import Valkey
from tests.adapters.shared_state.linked import KEY, linked
from tests.core.sharing.sidecars import A
from tests.extent import PATIENCE

CA = trustme.CA()
OTHER_CA = trustme.CA()


@asynccontextmanager
async def tls_proxy(valkey: Valkey) -> AsyncIterator[int]:
    """Yield the port of a proxy that requires a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert("127.0.0.1").configure_cert(context)
    CA.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", valkey.port)
        both = copy(reader, there[1]), copy(there[0], writer)
        await asyncio.gather(*both, return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def url(port: int, directory: Path, ca: trustme.CA = CA, *, client: bool = True) -> str:
    """Return the URL for a proxy, with files for this CA and for a client's certificate."""
    trusted, own = directory / "ca.pem", directory / "client.pem"
    ca.cert_pem.write_to_path(str(trusted))
    CA.issue_cert("sidecar").private_key_and_cert_chain_pem.write_to_path(str(own))
    certificate = f"&ssl_certfile={own}&ssl_keyfile={own}" if client else ""
    return f"rediss://127.0.0.1:{port}?ssl_ca_certs={trusted}{certificate}"


async def test_carries_the_shared_state(own_valkey: Valkey, tmp_path: Path) -> None:
    async with AsyncExitStack() as cleanup:
        port = await cleanup.enter_async_context(tls_proxy(own_valkey))
        server = SharedStateServer(url(port, tmp_path), KEY)
        server.check()
        one, other = await cleanup.enter_async_context(linked(server))
        one.sends(A)
        await other.has({A: 1})


@pytest.mark.parametrize("wrong", ["another CA", "no client certificate"])
async def test_with_wrong_certificates_is_an_outage(
    wrong: str, own_valkey: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as cleanup:
        port = await cleanup.enter_async_context(tls_proxy(own_valkey))
        ca = OTHER_CA if wrong == "another CA" else CA
        address = url(port, tmp_path, ca, client=wrong == "another CA")
        sidecars = linked(SharedStateServer(address, KEY), number=1, seconds=0)
        (sidecar,) = await cleanup.enter_async_context(sidecars)

        def is_reported() -> bool:
            return any(record.message == "shared state unavailable" for record in caplog.records)

        await until(is_reported, PATIENCE, "the log line")
        sidecar.sends(A)
        assert sidecar.loads() == {A: 1}
        assert not sidecar.is_connected
