"""TLS for gateways that connect over the network, with certificates that may be renewed."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.tls")


class Pem(NamedTuple):
    """The content of the files of a `KeyPair`."""

    key: bytes
    certificate: bytes
    client_ca: bytes | None


@dataclass(frozen=True)
class KeyPair:
    """A certificate chain and its private key, in PEM files that may be renewed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """CA of the certificates that clients must show; None if they need none."""

    def read(self) -> Pem:
        """Return the files' content. Raises OSError if a file is missing or they do not match."""
        pem = self.content()
        self.context()  # gRPC accepts any content, and would fail at each handshake.
        return pem

    def content(self) -> Pem:
        """Return the files' content as it is. Raises OSError if one cannot be read."""
        client_ca = None if self.client_ca is None else self.client_ca.read_bytes()
        return Pem(self.key.read_bytes(), self.certificate.read_bytes(), client_ca)

    def context(self) -> ssl.SSLContext:
        """Return a context for connections that speak HTTP/2 (ALPN `h2`). Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        with _named(f"{self.certificate} and {self.key}"):
            context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            with _named(str(self.client_ca)):
                context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Certificates:
    """The TLS contexts of new connections, from the current files of a key pair.

    Raises OSError if the files are bad at the start. Later, the last good pair stays in force.
    """

    def __init__(self, pair: KeyPair) -> None:
        self._pair = pair
        self._refused: Pem | str | None = None
        """The content, or the error, that was logged last."""
        # Read the content first: if the files change before the context, they are read again later.
        self._content = pair.content()
        self._context = pair.context()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Never raises."""
        try:
            latest = self._pair.content()
        except OSError as error:
            self._refuse(str(error), error)
            return self._context
        if latest not in (self._content, self._refused):
            try:
                self._context = self._pair.context()
            except OSError as error:
                self._refuse(latest, error)
            else:
                self._content, self._refused = latest, None
                log.info("certificate renewed", extra=fields(file=self._pair.certificate))
        return self._context

    def _refuse(self, what: Pem | str, why: OSError) -> None:
        """Log each bad renewal once, even if many connections come before the next one."""
        if what != self._refused:
            self._refused = what
            log.error("certificate refused, the last good stays", extra=fields(why=why))


@contextmanager
def _named(files: str) -> Iterator[None]:
    """Add the names of the files to OpenSSL's errors."""
    try:
        yield
    except ssl.SSLError as error:
        why = (error.reason or "no PEM").replace("_", " ").lower()
        raise OSError(f"{files}: {why}") from None
