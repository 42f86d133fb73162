"""Structured logs on stderr: a message and fields, as text or as JSON, one line each."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from traceback import format_exception, format_tb
from typing import Literal

from extproc.adapters.observability.log_writer import LogWriter

_TRACEBACK = "Traceback (most recent call last):\n"
_PRIVATE_LOGGERS = {
    *("asyncio", "extproc.admin", "extproc.grpc", "extproc.requests"),
    *("grpc", "grpc._cython.cygrpc"),
}
"""Loggers whose exceptions may quote a request, for example an encoding error."""

LogFormat = Literal["text", "json"]


def fields(**values: object) -> Mapping[str, object]:
    """Return the value of `extra=` that adds fields to a line."""
    return {"fields": values}


def configure(level: str, form: LogFormat) -> None:
    """Send all logs to stderr, if there is one.

    `level` is a standard name in upper or lower case. It applies to the sidecar's loggers;
    libraries log warnings only.
    """
    # stderr is None if it was closed before the start.
    handler = logging.NullHandler() if sys.stderr is None else LogWriter(sys.stderr.fileno())
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("extproc").setLevel(level.upper())


def flush() -> None:
    """Wait until all lines are written, but not for long."""
    for writer in _writers():
        writer.flush()


def dropped() -> int:
    """Return the number of lines so far that were not written."""
    return sum(writer.dropped for writer in _writers())


def _writers() -> list[LogWriter]:
    return [one for one in logging.getLogger().handlers if isinstance(one, LogWriter)]


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    values = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        error, private = record.exc_info[1], record.name in _PRIVATE_LOGGERS
        values["error"] = type(error).__name__ if private else repr(error)
        values["traceback"] = _frames(error) if private else _trace(error)
    return values


def _frames(error: BaseException) -> str:
    """Return the traceback without the message of the exception."""
    return "".join((_TRACEBACK, *format_tb(error.__traceback__))).rstrip()


def _trace(error: BaseException) -> str:
    return "".join(format_exception(error)).rstrip()


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        shown = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        return f"{_time(record)} {record.levelname} {_one_line(record.getMessage())}{shown}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        return json.dumps(line, default=str)


def _one_line(message: str) -> str:
    return message if message.isprintable() else json.dumps(message)


def _quoted(value: object) -> str:
    """Return the value as text, quoted and escaped if it is not one plain word."""
    text = str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
