"""The allocator keeps freed memory if the C library supports it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from extproc.adapters.allocator import KEPT_BYTES, keep_freed_memory


class Library:
    """A C library whose `mallopt` records its arguments."""

    def __init__(self, accepts: int) -> None:
        self.given: list[tuple[int, int]] = []
        self._accepts = accepts

    def mallopt(self, parameter: int, value: int) -> int:
        self.given.append((parameter, value))
        return self._accepts


def loading(library: object) -> Callable[[None], object]:
    return lambda _: library


@pytest.mark.parametrize(("accepts", "kept"), [(1, True), (0, False)])
def test_returns_true_if_the_library_keeps_memory(
    monkeypatch: pytest.MonkeyPatch, accepts: int, kept: bool
) -> None:
    library = Library(accepts)
    monkeypatch.setattr(ctypes, "CDLL", loading(library))
    assert keep_freed_memory() is kept
    assert library.given[0] == (-1, KEPT_BYTES)


def test_library_without_mallopt_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", loading(object()))
    assert keep_freed_memory() is False
