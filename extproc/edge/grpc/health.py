"""What gRPC health says of us, whatever transport it is asked over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from extproc.edge.grpc.calls import Method, Send
from extproc.edge.grpc.messages import CallError, Status
from extproc.edge.wire.health_pb2 import HealthCheckRequest, HealthCheckResponse

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

# The names by which the endpoint picker protocol asks for health, beside the service's own.
LIVENESS = "liveness"
READINESS = "readiness"


def statuses(*, serving: bool) -> Mapping[str, HealthCheckResponse.ServingStatus]:
    """Of the server as a whole, of the service, and of what pickers ask for; we live anyway."""
    status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
    return {
        **dict.fromkeys(("", SERVICE, READINESS), status),
        LIVENESS: HealthCheckResponse.SERVING,
    }


class Health:
    """Answers `grpc.health.v1.Health` over the fast transport."""

    def __init__(self) -> None:
        self._statuses = statuses(serving=False)
        self._watches: set[_Watch] = set()

    def set_serving(self, serving: bool) -> None:
        """From now on it says so, to those who watch at once."""
        self._statuses = statuses(serving=serving)
        for watch in self._watches:
            watch.send(self._answer(watch.service))

    def methods(self) -> Mapping[bytes, Method]:
        """By path."""
        return {
            b"/grpc.health.v1.Health/Check": Method(lambda _: _Check(self._check)),
            b"/grpc.health.v1.Health/Watch": Method(self._watch, ends_with_peer=False),
        }

    def _check(self, service: str) -> bytes:
        if service not in self._statuses:
            raise CallError(Status.NOT_FOUND, "no such service")
        return self._answer(service)

    def _answer(self, service: str) -> bytes:
        status = self._statuses.get(service, HealthCheckResponse.SERVICE_UNKNOWN)
        return HealthCheckResponse(status=status).SerializeToString()

    def _watch(self, send: Send) -> _Watch:
        return _Watch(send, self._watches, self._answer)


class _Check:
    def __init__(self, check: Callable[[str], bytes]) -> None:
        self._check = check

    def receive(self, message: bytes) -> Sequence[bytes]:
        return (self._check(HealthCheckRequest.FromString(message).service),)

    def close(self) -> None:
        return


class _Watch:
    """One who is told what changes, from its first message to its end."""

    def __init__(self, send: Send, watches: set[_Watch], answer: Callable[[str], bytes]) -> None:
        self.send = send
        self.service = ""
        self._watches = watches
        self._answer = answer

    def receive(self, message: bytes) -> Sequence[bytes]:
        self.service = HealthCheckRequest.FromString(message).service
        self._watches.add(self)
        return (self._answer(self.service),)

    def close(self) -> None:
        self._watches.discard(self)
        # It leads back to the connection, which would wait for the collector.
        self.send = _say_nothing


def _say_nothing(message: bytes) -> None:
    """Sends to a watch that is over."""
