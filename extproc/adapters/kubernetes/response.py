"""Requests to the API server and their responses, over any version of HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Timeouts:
    """The seconds that a response may take."""

    total: float
    """The time from the request to the end of the response."""
    head: float
    """The time from the request to the status."""
    read: float
    """The time between two parts of the body."""


class Response(Protocol):
    """The head of a response, and its body, which still has to be read."""

    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> str:
        """Standard text of the status."""

    def header(self, name: str) -> str:
        """Return the value of a header; empty without one."""

    async def read(self) -> bytes:
        """Return the whole body. Raises TimeoutError and OSError."""

    def lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines of the body, and None when the server has shown that it responds.

        Raises TimeoutError, OSError and MalformedResponse.
        """

    def release(self) -> None:
        """Free the connection for other requests; the rest of the body is lost."""


@dataclass(frozen=True)
class Request:
    """A request that does not depend on the version of HTTP."""

    method: str
    url: str
    """The whole URL."""
    path: str
    """Path and query of the URL."""
    headers: dict[str, str]
    body: bytes | None
    timeouts: Timeouts

    def fields(self) -> list[tuple[str, str]]:
        """Return the header fields of HTTP/2."""
        url = urlsplit(self.url)
        pseudo = {
            ":method": self.method,
            ":scheme": url.scheme,
            ":authority": url.netloc,
            ":path": self.path,
        }
        ordinary = {name.lower(): value for name, value in self.headers.items()}
        return [*pseudo.items(), *ordinary.items()]
