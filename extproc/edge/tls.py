"""TLS for gateways that call us over the network, with a certificate that may be renewed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Pem(NamedTuple):
    """What is in the files of a `KeyPair`."""

    key: bytes
    certificate: bytes
    client_ca: bytes | None


@dataclass(frozen=True)
class KeyPair:
    """A certificate chain and its private key, in PEM files that somebody may renew."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Who must have signed the certificates that clients show; None where they need none."""

    def read(self) -> Pem:
        """What they hold. Raises OSError where they cannot be read or do not fit."""
        client_ca = None if self.client_ca is None else self.client_ca.read_bytes()
        pem = Pem(self.key.read_bytes(), self.certificate.read_bytes(), client_ca)
        # gRPC would take anything, and fail at each handshake.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with _named(f"{self.certificate} and {self.key}"):
            context.load_cert_chain(self.certificate, self.key)
        with _named(str(self.client_ca)):
            if client_ca is not None:
                context.load_verify_locations(self.client_ca)
        return pem


@contextmanager
def _named(files: str) -> Iterator[None]:
    """Says which files OpenSSL does not like."""
    try:
        yield
    except ssl.SSLError as error:
        why = (error.reason or "no PEM").replace("_", " ").lower()
        raise OSError(f"{files}: {why}") from None
