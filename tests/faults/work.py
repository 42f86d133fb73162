"""Work that reading a body takes, counted in bytes and values instead of seconds."""

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
    """A tally of what the parsers and the hash were given."""

    built_bytes: int = 0
    """Bytes that were parsed into Python objects; leading blanks cost nothing."""
    built_values: int = 0
    """Objects made from them: dicts, lists, texts, numbers, keys."""
    scanned_bytes: int = 0
    """Bytes that were checked without making objects of them."""
    hashed_bytes: int = 0
    """Bytes that went into hashes."""


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Counts the work of all requests that are read within the context."""
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
    """Stands in front of a decoder that checks large bodies."""

    def __init__(self, work: Work, decoder: msgspec.json.Decoder[Any]) -> None:
        self._work = work
        self._decoder = decoder

    def decode(self, body: bytes) -> Any:
        self._work.scanned_bytes += len(body)
        return self._decoder.decode(body)


def values_of(parsed: object) -> int:
    """Count the objects that a parsed document is made of, keys included."""
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
