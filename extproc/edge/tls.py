"""TLS for gateways that call us over the network, with a certificate that may be renewed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KeyPair:
    """A certificate chain and its private key, in PEM files that somebody may renew."""

    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes]:
        """Key and certificate. Raises OSError where they cannot be read or do not fit."""
        pair = self.key.read_bytes(), self.certificate.read_bytes()
        try:
            # gRPC would take anything, and fail at each handshake.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            why = (error.reason or "no PEM").replace("_", " ").lower()
            raise OSError(f"{self.certificate} and {self.key}: {why}") from None
        return pair
