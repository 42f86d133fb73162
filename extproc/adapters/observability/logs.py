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
_OF_REQUESTS = {"asyncio", "extproc.grpc", "extproc.requests", "grpc", "grpc._cython.cygrpc"}
"""Who may log an exception that quotes a request, as one from encoding a text does."""

LogFormat = Literal["text", "json"]


def fields(**values: object) -> Mapping[str, object]:
    """What `extra=` takes to add fields to a line."""
    return {"fields": values}


def configure(level: str, form: LogFormat) -> None:
    """Sends all logs to stderr, if there is one. `level`, a standard name in any case, is for our
    own lines; libraries are heard when they warn.
    """
    # None where it was closed before we came.
    handler = logging.NullHandler() if sys.stderr is None else LogWriter(sys.stderr.fileno())
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("extproc").setLevel(level.upper())


def flush() -> None:
    """Waits until what was logged is written, but not for long."""
    for writer in _writers():
        writer.flush()


def dropped() -> int:
    """Lines so far that were not written, for nobody read them or there was no room."""
    return sum(writer.dropped for writer in _writers())


def _writers() -> list[LogWriter]:
    return [one for one in logging.getLogger().handlers if isinstance(one, LogWriter)]


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    values = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        error, private = record.exc_info[1], record.name in _OF_REQUESTS
        values["error"] = type(error).__name__ if private else repr(error)
        values["traceback"] = _places(error) if private else _whole(error)
    return values


def _places(error: BaseException) -> str:
    """Where it came from, without what it says."""
    return "".join((_TRACEBACK, *format_tb(error.__traceback__))).rstrip()


def _whole(error: BaseException) -> str:
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
    """Bare where it reads well; quoted, with its line breaks escaped, where not."""
    text = str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
