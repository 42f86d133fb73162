"""Refusals: the errors that the sidecar itself returns for a request, each with status and code.

The message of a refusal says what to change, because its reader may have nothing but an HTTP
client.

Errors have OpenAI's shape, or Anthropic's for clients of Anthropic's API. In both, `request_id` is
Envoy's id of the request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from extproc.core.schema import UNKNOWN_MODEL

# A client's name is quoted up to this length: enough to recognize a typo, but not to flood logs.
_MAX_QUOTED_CHARS = 128
_MAX_METHOD_CHARS = 16
_MAX_LISTED_MODELS = 50

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's error types by status. Anthropic uses `overloaded_error` with status 529. Here status
503 has this type too, because clients then retry later."""

_ANTHROPIC_ERROR = "api_error"


class Refusal(Exception):
    """A request that the sidecar itself answers with an error."""

    status: int
    code: str
    type: str = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, model: str = UNKNOWN_MODEL) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        # The name of a configured model, never a name from the client: it becomes a metric label.
        self.model = model

    @property
    def headers(self) -> dict[str, str]:
        """The response headers, without the status."""
        return {"content-type": "application/json"}

    def body(self, request_id: str = "", *, anthropic: bool = False) -> bytes:
        """Return the response body, with the request's id if it has one."""
        error: dict[str, object] = {"error": self._openai_error()}
        if anthropic:
            kind = _ANTHROPIC_TYPES.get(self.status, _ANTHROPIC_ERROR)
            error = {"type": "error", "error": {"type": kind, "message": self.message}}
        if request_id:
            error["request_id"] = request_id
        return json.dumps(error).encode()

    def _openai_error(self) -> dict[str, object]:
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }


class InvalidRequest(Refusal):
    """The body is not a valid request of this API, or does not name a model."""

    status = 400
    code = "invalid_request"


class ModelNotFound(Refusal):
    """The model that the request names is not configured."""

    status = 404
    code = "model_not_found"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"The model {name[:_MAX_QUOTED_CHARS]!r} does not exist. {known_models(known)}",
            param="model",
        )


class UnknownPath(Refusal):
    """The path is not an inference path."""

    status = 404
    code = "unknown_path"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"No such path: {method[:_MAX_METHOD_CHARS]} {path[:_MAX_QUOTED_CHARS]}")


class NoEndpoints(Refusal):
    """The model is configured, but none of its endpoints that the request may go to is ready."""

    status = 503
    code = "no_endpoints"
    type = "service_unavailable"

    # Discovery notices within a second or two that a pod is ready.
    RETRY_AFTER_SECONDS = 2

    def __init__(self, model: str, adapter: str = "", *, restricted: bool = False) -> None:
        what = f"model {model!r}" + (f" with adapter {adapter!r}" if adapter else "")
        where = " among those that the gateway allows" if restricted else ""
        super().__init__(f"No endpoint of {what} is ready{where}.", model=model)

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.RETRY_AFTER_SECONDS)}


class ModelChanged(Refusal):
    """While the request waited, its name came to mean a model that servers know by another name.

    The sidecar cannot change the body, because it does not keep large bodies.
    """

    status = 503
    code = "model_changed"
    type = "service_unavailable"

    RETRY_AFTER_SECONDS = 1

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The request waited while its name came to mean model {model!r}: send it again.",
            model=model,
        )

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.RETRY_AFTER_SECONDS)}


class QueueFull(Refusal):
    """The queue is full, or a request with a higher priority replaced this one in it."""

    status = 429
    code = "queue_full"
    type = "rate_limit_error"

    def __init__(self, model: str, retry_after: int, *, evicted: bool = False) -> None:
        why = "a request with a higher priority replaced this one" if evicted else "try later"
        super().__init__(
            f"Too many requests wait for an endpoint of model {model!r}: {why}.", model=model
        )
        self.retry_after = retry_after
        """Seconds after which the queue is probably shorter."""

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.retry_after)}


class QueueTimeout(Refusal):
    """The request waited too long for room on an endpoint, or would have to."""

    status = 503
    code = "queue_timeout"
    type = "service_unavailable"

    def __init__(self, model: str, retry_after: int, why: str) -> None:
        super().__init__(f"No endpoint of model {model!r} had room: {why}.", model=model)
        self.retry_after = retry_after
        """Seconds after which there is probably room."""

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.retry_after)}


class UnsupportedBodyMode(Refusal):
    """Envoy's body mode forwards request bodies upstream before a decision is possible."""

    status = 500
    code = "unsupported_body_mode"
    type = "server_error"

    def __init__(self) -> None:
        super().__init__(
            "The gateway's ext_proc filter must use request_body_mode BUFFERED_PARTIAL, "
            "BUFFERED, FULL_DUPLEX_STREAMED, NONE, or STREAMED with "
            "send_body_without_waiting_for_header_response."
        )


def known_models(known: Sequence[str]) -> str:
    """Return a sentence with the names of the first known models."""
    names = ", ".join(known[:_MAX_LISTED_MODELS]) or "none"
    others = len(known) - _MAX_LISTED_MODELS
    return f"Known models: {names}{f' and {others} more' if others > 0 else ''}."
