"""Why a request got no whole answer: a kind, to be counted, and what was said."""

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
    """Of one request."""

    kind: str
    """One of few: a status, or what became of the connection."""

    message: str


class FailedError(Exception):
    """Carries a failure to where requests are counted."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure


def of_error(error: BaseException | None) -> Failure:
    """What became of a connection; None: it was closed as if nothing were wrong."""
    if error is None:
        return Failure("connection closed", "the server closed it before an answer was there")
    if isinstance(error, ssl.SSLError):
        return Failure("TLS", one_line(str(error)))
    if isinstance(error, TimeoutError):
        return Failure("timeout", one_line(str(error)) or "no connection in time")
    if isinstance(error, OSError):
        kind = _KINDS.get(error.errno or 0, "connection failed")
        return Failure(kind, one_line(error.strerror or str(error)))
    return Failure("not HTTP", one_line(str(error)) or type(error).__name__)


def of_refusal(status: int, body: bytes) -> Failure:
    """An answer that is no 200."""
    try:
        document = jiter.from_json(body)
    except ValueError:
        document = None
    said = message_of(document) if isinstance(document, dict) else ""
    return Failure(f"HTTP {status}", said or one_line(body.decode(errors="replace")))


def message_of(document: dict[str, Any]) -> str:
    """What an error in OpenAI's shape says, or in one of those that vLLM has used."""
    error = document.get("error", document)
    said = error.get("message") if isinstance(error, dict) else error
    return one_line(said if isinstance(said, str) else str(error))


def one_line(text: str) -> str:
    """A message as one printable line, longer than any that is shown but not without end."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:_KEPT_CHARACTERS]).split())


def shortened(line: str) -> str:
    """As much of it as is shown."""
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"
