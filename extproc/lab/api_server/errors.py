"""The stand-in API server's refusals: `Status` objects, as a real API server words them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """An answer that is a `Status` of failure."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def document(self) -> Json:
        """The body of the answer, or the object of a watch's ERROR event."""
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        return status if self.details is None else {**status, "details": self.details}


def bad_request(message: str) -> ApiError:
    """400, for what cannot be understood."""
    return ApiError(400, "BadRequest", message)


def expired(message: str) -> ApiError:
    """410, for versions before the last compaction."""
    return ApiError(410, "Expired", message)


def no_such_path() -> ApiError:
    """404, for a path that is no resource's."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})
