"""Reads files with a JSON object on each line, and reports every bad line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from extproc.lab.input_error import InputError

_SHOWN_PROBLEMS = 20

Row = TypeVar("Row")


class WorkloadError(InputError):
    """A workload that cannot be built; the message is for the user."""


def read(path: Path, row: Callable[[int, dict[str, object]], Row]) -> list[Row]:
    """Read every line that is not blank.

    `row` converts its number and content, and raises ValueError (or pydantic's) if it cannot.
    Raises WorkloadError with a line `FILE:LINE: problem` for each bad line.
    """
    rows: list[Row] = []
    problems: list[str] = []
    for number, line in enumerate(_content(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(row(number, _object(line)))
        except ValidationError as invalid:
            problems.append(f"{path}:{number}: {_all_of(invalid)}")
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        hidden = len(problems) - _SHOWN_PROBLEMS
        more = [f"{path}: and {hidden} bad lines more"] if hidden > 0 else []
        raise WorkloadError("\n".join([*problems[:_SHOWN_PROBLEMS], *more]))
    if not rows:
        raise WorkloadError(f"{path}: the file has no requests")
    return rows


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None


def _object(line: bytes) -> dict[str, object]:
    try:
        value = from_json(line)
    except ValueError as error:
        # The parser counts lines too, but it got only one.
        raise ValueError(f"not JSON: {str(error).replace(' line 1', '')}") from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value


def _all_of(invalid: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, error['loc']))}: {_message(error['type'], error['msg'])}".lstrip(": ")
        for error in invalid.errors(include_url=False, include_input=False)
    )


def _message(kind: str, message: str) -> str:
    known = {"missing": "is required", "extra_forbidden": "unknown key"}
    return known.get(kind, message.removeprefix("Value error, "))
