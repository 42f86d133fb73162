"""The interface of the gRPC transports."""

from __future__ import annotations

from typing import Literal, Protocol

Transport = Literal["fast", "grpcio"]


class Server(Protocol):
    """A server to which Envoy connects."""

    async def start(self, address: str) -> None:
        """Bind HOST:PORT or unix:PATH. Raises OSError if that fails or the TLS files are bad.

        From then on, gRPC health responds, and streams of the service end with UNAVAILABLE.
        """

    async def set_serving(self, serving: bool) -> None:
        """Serve new streams of the service, or end each of them with UNAVAILABLE.

        gRPC health reports which. Its service `liveness` is SERVING in both cases.
        """

    async def stop(self, grace: float) -> None:
        """Accept no new streams. Open ones have `grace` seconds to end.

        A second call, or a call without a start, does nothing.
        """
