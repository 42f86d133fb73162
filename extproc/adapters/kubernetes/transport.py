"""Limits of connections to the API server, and HTTP/1.1 with TCP keep-alive."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp

CONNECT_SECONDS = 4.0
HANDSHAKE_SECONDS = 10.0
"""Time for the TLS handshake and the first frames, as in client-go. After an outage, an API server
needs seconds for those of all its clients, and repeated ones would add to them."""

# The kernel closes a connection whose network path is dead within half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}

EVENT_BYTES = 2**24
"""Longest event of a watch. An object has at most 1.5 MiB, but each `<`, `>` and `&` in it has six
bytes in the API server's JSON. The limit is twice the size of aiohttp's buffer."""

TOO_LONG = "the watch sent an event larger than any object in the API"


def new_session() -> aiohttp.ClientSession:
    """Return a pool of connections that fail soon after their network path dies."""
    # No limit: each watch holds a connection.
    connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket)
    return aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=EVENT_BYTES // 2)


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # Some platforms lack some of these options.
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
