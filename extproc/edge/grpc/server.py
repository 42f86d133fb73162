"""What any transport is to those who start and drain it."""

from __future__ import annotations

import os
import socket
from typing import Literal, Protocol

UNIX = "unix:"
"""What the address of a socket in the file system begins with."""

Transport = Literal["fast", "grpcio"]


class Server(Protocol):
    """Where Envoy connects."""

    async def start(self, address: str) -> None:
        """Binds HOST:PORT or unix:PATH. Raises OSError where that fails, or TLS files are bad.

        gRPC health answers from now on. Streams of the service end with UNAVAILABLE.
        """

    async def set_serving(self, serving: bool) -> None:
        """Serves streams of the service, or ends each new one with UNAVAILABLE.

        gRPC health reports it: only `liveness` is SERVING in both cases.
        """

    async def stop(self, grace: float) -> None:
        """Takes no new streams; those that run have `grace` seconds to end.

        A second call, or one without a start, does nothing.
        """


def check_free(path: str) -> None:
    """Raises OSError if somebody listens there: what is bound last would silently take over.

    A socket that was left behind is free.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        if os.path.exists(path) and not probe.connect_ex(path):
            raise OSError(f"{path} is in use")
