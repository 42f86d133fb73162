"""A stand-in API server with TLS, whose certificate moves to another authority."""

from __future__ import annotations

from pathlib import Path

import trustme

from extproc.lab.api_server.builders import config_map
from tests.e2e.forked import ForkedApiServer

HOST = "127.0.0.1"
OLD, NEW = trustme.CA(), trustme.CA()


def bundle(*authorities: trustme.CA) -> bytes:
    return b"".join(one.cert_pem.bytes() for one in authorities)


def certificate(authority: trustme.CA, name: str = HOST) -> bytes:
    return authority.issue_cert(name).private_key_and_cert_chain_pem.bytes()


class SecureServer:
    """A stand-in API server with TLS, the files that it reads, and a bundle for its clients."""

    def __init__(self, directory: Path) -> None:
        self.bundle = directory / "ca.crt"
        self.bundle.write_bytes(bundle(OLD))
        self._certificate = directory / "server.pem"
        self._certificate.write_bytes(certificate(OLD))
        files = ["--certificate", str(self._certificate), "--authority", str(self.bundle)]
        self.process = ForkedApiServer(directory, files)

    async def move_to(self, authority: trustme.CA) -> None:
        """Continue with a certificate from another authority, on new connections."""
        self._certificate.write_bytes(certificate(authority))
        await self.process.faults(listening=False)
        await self.process.faults(listening=True)

    async def put(self, name: str) -> None:
        await self.process.apply(config_map("ns", name, {"key": ""}))
