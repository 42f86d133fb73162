"""Failures of requests: a kind to count them by, and a message."""

from __future__ import annotations

import errno
import ssl
from dataclasses import dataclass
from typing import Any

import jiter

_MESSAGE_CHARACTERS = 200
_KEPT_CHARACTERS = 4_000

_KINDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection reset",
    errno.ETIMEDOUT: "timeout",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
    errno.EADDRNOTAVAIL: "no free local port",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
}


@dataclass(frozen=True)
class Failure:
    """The reason why a request got no complete response."""

    kind: str
    """A status, or an error of the connection; there are only a few kinds."""

    message: str


def of_error(error: BaseException | None) -> Failure:
    """Return the failure for the error of a connection; None for a connection that was closed."""
    if error is None:
        return Failure("connection closed", "the server closed it before the response")
    if isinstance(error, ssl.SSLError):
        return Failure("TLS", one_line(str(error)))
    if isinstance(error, TimeoutError):
        return Failure("timeout", one_line(str(error)) or "no connection in time")
    if isinstance(error, OSError):
        kind = _KINDS.get(error.errno or 0, "connection failed")
        return Failure(kind, one_line(error.strerror or str(error)))
    return Failure("not HTTP", one_line(str(error)) or type(error).__name__)


def of_status(status: int, body: bytes) -> Failure:
    """Return the failure for a response with another status than 200."""
    try:
        document = jiter.from_json(body)
    except ValueError:
        document = None
    message = message_of(document) if isinstance(document, dict) else ""
    return Failure(f"HTTP {status}", message or one_line(body.decode(errors="replace")))


def message_of(document: dict[str, Any]) -> str:
    """Return the message of an error in OpenAI's shape, or in one of vLLM's older shapes."""
    error = document.get("error", document)
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(message if isinstance(message, str) else str(error))


def one_line(text: str) -> str:
    """Return a message as one printable line of limited length."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:_KEPT_CHARACTERS]).split())


def shortened(line: str) -> str:
    """Return the part of a line that is printed."""
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"
