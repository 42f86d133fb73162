"""Types of flags: each function turns a text into a value, or raises ArgumentTypeError."""

from __future__ import annotations

import argparse
import ipaddress
import re
from urllib.parse import urlsplit

from extproc.adapters.dns.lookup import NameServer
from extproc.adapters.tracing.endpoint import OtlpEndpoint, otlp_endpoint
from extproc.core.schema import kubernetes_name
from extproc.settings import ConfigMapName

_MOST_REQUESTS = 100_000
"""Requests in flight that may be assumed on an endpoint. They are counted one by one."""
_DIGITS = 20
"""Digits of numbers that are read: longer ones take long to convert."""


def address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text.startswith("unix:") and text != "unix:":
        return text
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is neither HOST:PORT nor unix:PATH")
    return text


def config_map(text: str) -> ConfigMapName:
    namespace, _, name = text.partition("/")
    try:
        return ConfigMapName(kubernetes_name(namespace), kubernetes_name(name))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME") from None


def name_server(text: str) -> NameServer:
    """Return the server for IP or IP:PORT. An IPv6 address with a port needs brackets."""
    host, port = text, "53"
    if text.startswith("[") or text.count(":") == 1:
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if ip is None or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not IP or IP:PORT")
    return NameServer(str(ip), int(port))


def shared_state_url(text: str) -> str:
    """Return the URL of a Redis or Valkey server."""
    try:
        parts = urlsplit(text)
        is_complete = parts.path if parts.scheme == "unix" else parts.hostname and parts.port != 0
    except ValueError:
        is_complete = None
    if not is_complete or parts.scheme not in ("redis", "rediss", "unix"):
        raise argparse.ArgumentTypeError(
            "the shared state's URL must be redis://HOST[:PORT][/DATABASE], "
            "rediss://HOST[:PORT][/DATABASE] or unix://PATH"
        )
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        raise argparse.ArgumentTypeError(f"the database {parts.path[1:]!r} is not a number")
    return text


def otlp_url(text: str) -> OtlpEndpoint:
    """Return the receiver of traces for a URL."""
    try:
        return otlp_endpoint(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not http://HOST[:PORT], https://HOST[:PORT], grpc://HOST[:PORT] or "
            "grpcs://HOST[:PORT]"
        ) from None


def seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 999,999")
    return seconds


def byte_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes")
    return int(text)


class one_of:  # noqa: N801 - used like the functions of this module
    """The type of a flag with few values, which shells can complete."""

    def __init__(self, *options: str) -> None:
        self.options = options

    def __call__(self, text: str) -> str:
        if text.lower() not in self.options:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(self.options)}")
        return text.lower()


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:VALUE")
    return name.strip(), value.strip()


def load(text: str) -> tuple[str, int]:
    address, _, count = text.rpartition("=")
    if not address or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not IP:PORT=N")
    if len(count) > _DIGITS or int(count) > _MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_MOST_REQUESTS:,} requests")
    return address, int(count)


def host_port(text: str) -> str:
    if text.startswith("unix:"):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return address(text)


def path_prefix(text: str) -> str:
    if not re.fullmatch(r"/|(/[A-Za-z0-9._~-]+)+/?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path such as /team")
    return text
