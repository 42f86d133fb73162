"""TLS for gateways that call us over the network, with a certificate that may be renewed."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from extproc.adapters.logs import fields

log = logging.getLogger("extproc.tls")


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


def server_credentials(pair: KeyPair) -> grpc.ServerCredentials:
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
        return grpc.ssl_server_certificate_configuration([latest])

    initial = grpc.ssl_server_certificate_configuration([current])
    return grpc.dynamic_ssl_server_credentials(initial, renewed)
