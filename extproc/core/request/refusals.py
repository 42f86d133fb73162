"""Refusals: every way a request can be turned away, with its status and OpenAI code.

A refusal is the client's answer, not a fault of ours; its message is read by
people who hold only an HTTP client, so it says what to change.

Clients of Anthropic's API get Anthropic's shape of an error instead of OpenAI's. In both,
`request_id` beside the error is the id that Envoy gave the request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

# Long enough to tell a typo, short enough that a hostile name floods nothing.
_SHOWN_NAME = 128
_SHOWN_MODELS = 50

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types of errors by status. Anthropic's own status for an overload is 529; its type
is the one that tells clients to try again later, so 503 has it too."""

_ANTHROPIC_ERROR = "api_error"


class Refusal(Exception):
    """A request that is answered by the sidecar itself, with an error."""

    status: int
    code: str
    type: str = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, model: str = "unknown") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        # The configured model concerned; never a name that only the client knows,
        # because it becomes a metric label.
        self.model = model

    @property
    def headers(self) -> dict[str, str]:
        """Response headers beside the status."""
        return {"content-type": "application/json"}

    def body(self, request_id: str = "", *, anthropic: bool = False) -> bytes:
        """Return the response body, with the request's id where there is one."""
        answer: dict[str, object] = {"error": self._openai_error()}
        if anthropic:
            kind = _ANTHROPIC_TYPES.get(self.status, _ANTHROPIC_ERROR)
            answer = {"type": "error", "error": {"type": kind, "message": self.message}}
        if request_id:
            answer["request_id"] = request_id
        return json.dumps(answer).encode()

    def _openai_error(self) -> dict[str, object]:
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }


class InvalidRequest(Refusal):
    """The body is not a request of this API, or does not say for which model."""

    status = 400
    code = "invalid_request"


class ModelNotFound(Refusal):
    """Nobody here serves the model the request names."""

    status = 404
    code = "model_not_found"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"The model {name[:_SHOWN_NAME]!r} does not exist. {known_models(known)}",
            param="model",
        )


class UnknownPath(Refusal):
    """A path that no inference server behind us would answer."""

    status = 404
    code = "unknown_path"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"No such path: {method[:16]} {path[:_SHOWN_NAME]}")


class NoEndpoints(Refusal):
    """The model is known, but none of the endpoints that it may go to is ready."""

    status = 503
    code = "no_endpoints"
    type = "service_unavailable"

    # Discovery follows a pod's readiness within a second or two.
    RETRY_AFTER_SECONDS = 2

    def __init__(self, model: str, adapter: str = "", *, restricted: bool = False) -> None:
        what = f"model {model!r}" + (f" with adapter {adapter!r}" if adapter else "")
        where = " among those that the gateway allows" if restricted else ""
        super().__init__(f"No endpoint of {what} is ready{where}.", model=model)

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.RETRY_AFTER_SECONDS)}


class UnsupportedBodyMode(Refusal):
    """Envoy is set to send request bodies so that they go on before a decision could be made."""

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
    """Return a sentence that names the first of the known models."""
    shown = ", ".join(known[:_SHOWN_MODELS]) or "none"
    more = "" if len(known) <= _SHOWN_MODELS else f" and {len(known) - _SHOWN_MODELS} more"
    return f"Known models: {shown}{more}."
