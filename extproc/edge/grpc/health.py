"""The gRPC health service, for both transports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from extproc.edge.grpc.calls import Method, Send
from extproc.edge.grpc.messages import CallError, Status
from extproc.edge.http2 import Headers
from extproc.edge.wire.health_pb2 import HealthCheckRequest, HealthCheckResponse

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

# Service names that the endpoint picker protocol checks, in addition to the service's own.
LIVENESS = "liveness"
READINESS = "readiness"


def statuses(*, serving: bool) -> Mapping[str, HealthCheckResponse.ServingStatus]:
    """Return the status by service name: the server (""), the service, and both names above.

    `liveness` is always SERVING.
    """
    status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
    return {
        **dict.fromkeys(("", SERVICE, READINESS), status),
        LIVENESS: HealthCheckResponse.SERVING,
    }


class Health:
    """The service `grpc.health.v1.Health` over the fast transport."""

    def __init__(self) -> None:
        self._statuses = statuses(serving=False)
        self._watches: set[_Watch] = set()

    def set_serving(self, serving: bool) -> None:
        """Change the status, and send it to all watches."""
        self._statuses = statuses(serving=serving)
        for watch in self._watches:
            watch.send((self._response(watch.service),))

    def methods(self) -> Mapping[bytes, Method]:
        """Return the methods by path."""
        return {
            b"/grpc.health.v1.Health/Check": Method(lambda *_: _Check(self._check)),
            b"/grpc.health.v1.Health/Watch": Method(self._watch, ends_with_peer=False),
        }

    def _check(self, service: str) -> bytes:
        if service not in self._statuses:
            raise CallError(Status.NOT_FOUND, "no such service")
        return self._response(service)

    def _response(self, service: str) -> bytes:
        status = self._statuses.get(service, HealthCheckResponse.SERVICE_UNKNOWN)
        return HealthCheckResponse(status=status).SerializeToString()

    def _watch(self, send: Send, _: Headers) -> _Watch:
        return _Watch(send, self._watches, self._response)


class _Check:
    owes_replies = False

    def __init__(self, check: Callable[[str], bytes]) -> None:
        self._check = check

    def receive(self, message: bytes) -> Sequence[bytes]:
        return (self._check(HealthCheckRequest.FromString(message).service),)

    def close(self) -> None:
        return


class _Watch:
    """A call that receives each change of the status of one service."""

    owes_replies = False

    def __init__(self, send: Send, watches: set[_Watch], respond: Callable[[str], bytes]) -> None:
        self.send = send
        self.service = ""
        self._watches = watches
        self._respond = respond

    def receive(self, message: bytes) -> Sequence[bytes]:
        self.service = HealthCheckRequest.FromString(message).service
        self._watches.add(self)
        return (self._respond(self.service),)

    def close(self) -> None:
        self._watches.discard(self)
        # Break the reference cycle through the connection, so that it is freed at once.
        self.send = _send_nothing


def _send_nothing(messages: Sequence[bytes]) -> None:
    """Replace `send` when the watch is over."""
