"""The work of reading a body, counted in bytes and values instead of seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jiter
import msgspec
import pytest
import xxhash

from extproc.core.request import json_scan


@dataclass
class Work:
    """A tally of the input and the results of the parsers and the hash functions."""

    built_bytes: int = 0
    """Bytes that were parsed into Python objects, without leading blanks."""
    built_values: int = 0
    """Python objects that parsing created: dicts, lists, strings, numbers, keys."""
    scanned_bytes: int = 0
    """Bytes that were checked without creating objects."""
    hashed_bytes: int = 0
    """Bytes that were hashed."""


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Count the work of all requests that are read within the context."""
    work = Work()
    with patch.context() as within:
        within.setattr(jiter, "from_json", _parsing(work, jiter.from_json))
        within.setattr(json_scan, "_decoder", _scanning(work, json_scan._decoder))
        within.setattr(xxhash, "xxh64_intdigest", _hashing(work, xxhash.xxh64_intdigest))
        within.setattr(xxhash, "xxh3_64_hexdigest", _hashing(work, xxhash.xxh3_64_hexdigest))
        yield work


def _parsing(work: Work, parse: Callable[..., Any]) -> Callable[..., Any]:
    def counting(data: bytes, **options: Any) -> Any:
        parsed = parse(data, **options)
        work.built_bytes += len(data.lstrip())
        work.built_values += values_of(parsed)
        return parsed

    return counting


def _hashing(work: Work, digest: Callable[..., Any]) -> Callable[..., Any]:
    def counting(data: bytes, seed: int = 0) -> Any:
        work.hashed_bytes += len(data)
        return digest(data, seed)

    return counting


def _scanning(work: Work, decoder_of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *fields: _Scanning(work, decoder_of(*fields))


class _Scanning:
    """A decoder of large bodies that counts the bytes it checks."""

    def __init__(self, work: Work, decoder: msgspec.json.Decoder[Any]) -> None:
        self._work = work
        self._decoder = decoder

    def decode(self, body: bytes) -> Any:
        self._work.scanned_bytes += len(body)
        return self._decoder.decode(body)


def values_of(parsed: object) -> int:
    """Return the number of objects in a parsed document, keys included."""
    count, left = 0, [parsed]
    while left:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            count += len(value)
            left += value.values()
        elif isinstance(value, list):
            left += value
    return count
