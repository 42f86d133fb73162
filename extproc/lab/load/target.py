"""The target of the requests: its URL, its addresses and the head of each request."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from extproc import __version__
from extproc.lab.load.failure import of_error
from extproc.lab.workloads.workload import Api

_PATHS: Mapping[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_OURS = ("connection", "content-length", "content-type", "transfer-encoding")
"""Headers that the load generator sets itself."""

_SECRET_CHARACTERS = 8
"""Shortest header value that is treated as a secret."""

ENDPOINT_HEADERS = ("x-served-by", "x-stand-in-port")
"""Response headers that name the endpoint. Envoy can add the first one (`response_headers_to_add`,
%UPSTREAM_REMOTE_ADDRESS%); the stand-ins send the second one."""


class TargetError(ValueError):
    """Raised for a target that cannot be used."""


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    tls: bool
    host: str
    port: int
    path: str = ""
    """Path before /v1."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of each request, which may be secret."""

    addresses: tuple[str, ...] = ()
    """Addresses of the host; connections use them in turn."""

    endpoint_headers: tuple[str, ...] = ENDPOINT_HEADERS

    @property
    def url(self) -> str:
        """The URL without the default port and without /v1."""
        scheme, default = ("https", 443) if self.tls else ("http", 80)
        port = "" if self.port == default else f":{self.port}"
        return f"{scheme}://{_bracketed(self.host)}{port}{self.path}"

    def head(self, api: Api) -> bytes:
        """Return the head of each request, up to the value of content-length."""
        headers = {
            "host": self.url.partition("://")[2].partition("/")[0],
            "user-agent": f"extproc-load/{__version__}",
            "accept": "text/event-stream, application/json",
            **self.headers,
            "content-type": "application/json",
        }
        lines = [f"POST {self.path}{_PATHS[api]} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "content-length: "]).encode("latin-1")

    @property
    def secrets(self) -> list[str]:
        """Header values that must not be printed, even if a server quotes them."""
        parts = [part for value in self.headers.values() for part in (value, *value.split())]
        return sorted({part for part in parts if len(part) >= _SECRET_CHARACTERS}, key=len)[::-1]


def parse(url: str, headers: Mapping[str, str]) -> Target:
    """Parse a URL such as http://127.0.0.1:8000 or https://example.com/v1.

    Raises TargetError.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise TargetError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TargetError(f"{url!r} is not a URL such as http://HOST:PORT or https://HOST")
    if parts.username is not None or parts.query or parts.fragment:
        raise TargetError("the URL has a user, a query or a fragment: remove it")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise TargetError(f"{url!r} is not a URL: it has characters that must be escaped")
    path = parts.path.rstrip("/").removesuffix("/v1")
    tls = parts.scheme == "https"
    named = {name.lower(): value for name, value in headers.items()}
    _check(named)
    return Target(tls, parts.hostname, port or (443 if tls else 80), path, named)


def _check(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        # The message does not quote the value, which may be a secret.
        if not plain or not value.isprintable() or not value.isascii():
            raise TargetError(f"header {name!r}: HTTP does not allow this name or its value")
        if name in _OURS:
            raise TargetError(f"header {name!r}: extproc load sets it itself, so leave it out")


def reachable_addresses(
    target: Target, seconds: float, context: ssl.SSLContext | None
) -> tuple[str, ...]:
    """Return the addresses of a target, after a test connection. Raises TargetError."""
    try:
        infos = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TargetError(f"cannot resolve {target.host}: {reason}") from None
    problem = "it has no address"
    for family, _, _, _, address in infos:
        try:
            _probe(target, family, str(address[0]), seconds, context)
        except OSError as error:
            problem = of_error(error).message
        else:
            # Use only the address family that works; the other one may fail.
            same = [str(one[4][0]) for one in infos if one[0] == family]
            return tuple(dict.fromkeys(same))
    raise TargetError(f"cannot connect to {target.url}: {problem}")


def _probe(
    target: Target,
    family: socket.AddressFamily,
    address: str,
    seconds: float,
    context: ssl.SSLContext | None,
) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(seconds)
        probe.connect((address, target.port))
        if context is not None:
            context.wrap_socket(probe, server_hostname=target.host).close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
