"""The Kubernetes client's transport, with TCP keep-alive."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

# The kernel closes a connection whose network path is dead within half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


class KeepAliveTransport(RESTClientObject):
    """A transport whose connections fail soon after their network path dies."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        # No limit: each watch holds a connection.
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, socket_factory=_socket)


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
