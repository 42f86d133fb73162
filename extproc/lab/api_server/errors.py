"""The errors of the stand-in API server: `Status` objects with a real server's messages."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """A response with a `Status` of failure."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def document(self) -> Json:
        """Return the body of the response, or the object of a watch's ERROR event."""
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
    """Return status 400, for an invalid request."""
    return ApiError(400, "BadRequest", message)


def expired(message: str) -> ApiError:
    """Return status 410, for a version before the last compaction."""
    return ApiError(410, "Expired", message)


def no_such_path() -> ApiError:
    """Return status 404, for an unknown path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})
