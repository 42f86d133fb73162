"""Where requests go: a URL taken apart, its addresses, and the head of every request."""

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
"""Headers that follow from how requests are sent."""

_SECRET_CHARACTERS = 8
"""What is shorter than this is none, or may as well be guessed."""

ENDPOINT_HEADERS = ("x-served-by", "x-stand-in-port")
"""Of answers: which endpoint they are from. Envoy can be told to add the first
(`response_headers_to_add`, %UPSTREAM_REMOTE_ADDRESS%); the stand-ins say the second."""


class TargetError(ValueError):
    """The URL cannot be used; the message says why."""


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    tls: bool
    host: str
    port: int
    path: str = ""
    """Before /v1."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request; there may be secrets among them."""

    addresses: tuple[str, ...] = ()
    """Of the host. Connections are made to one after the other."""

    endpoint_headers: tuple[str, ...] = ENDPOINT_HEADERS

    @property
    def url(self) -> str:
        """As it would be written in a browser."""
        scheme, default = ("https", 443) if self.tls else ("http", 80)
        port = "" if self.port == default else f":{self.port}"
        return f"{scheme}://{_bracketed(self.host)}{port}{self.path}"

    def head(self, api: Api) -> bytes:
        """Of every request, up to where the length of the body is to be written."""
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
        """What must not be shown, also where a server quotes it; there is no telling which."""
        parts = [part for value in self.headers.values() for part in (value, *value.split())]
        return sorted({part for part in parts if len(part) >= _SECRET_CHARACTERS}, key=len)[::-1]


def parse(url: str, headers: Mapping[str, str]) -> Target:
    """A URL such as http://127.0.0.1:8000 or https://example.com/v1. Raises TargetError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise TargetError(f"{url!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TargetError(f"{url!r} is no URL such as http://HOST:PORT or https://HOST")
    if parts.username is not None or parts.query or parts.fragment:
        raise TargetError("a URL with a user, a query or a fragment means nothing here")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise TargetError(f"{url!r} is no URL: it has characters that must be escaped")
    path = parts.path.rstrip("/").removesuffix("/v1")
    tls = parts.scheme == "https"
    named = {name.lower(): value for name, value in headers.items()}
    _check(named)
    return Target(tls, parts.hostname, port or (443 if tls else 80), path, named)


def _check(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        # The value is not shown: it may be a secret.
        if not plain or not value.isprintable() or not value.isascii():
            raise TargetError(f"header {name!r}: a name or value that HTTP does not allow")
        if name in _OURS:
            raise TargetError(f"header {name!r} is not for you to set")


def found(target: Target, seconds: float, context: ssl.SSLContext | None) -> tuple[str, ...]:
    """The addresses of a target, one of which has been connected to. Raises TargetError."""
    try:
        infos = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise TargetError(f"cannot find {target.host}: {said}") from None
    problem = "it has no address"
    for family, _, _, _, address in infos:
        try:
            _probe(target, family, str(address[0]), seconds, context)
        except OSError as error:
            problem = of_error(error).message
        else:
            # A family that works: with the other one, half of the requests might fail.
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
