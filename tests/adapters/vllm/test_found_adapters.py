from __future__ import annotations

import asyncio

from extproc.adapters.vllm.found_adapters import FoundAdapters
from extproc.adapters.vllm.names import MOST_ADAPTERS
from extproc.core.routing.catalog import Adapters
from tests.adapters.documents import eventually

SQL, LAW, BOTH = frozenset({"sql"}), frozenset({"law"}), frozenset({"sql", "law"})


class Reports:
    """The reported adapters, in order."""

    def __init__(self) -> None:
        self.found = FoundAdapters(self._report)
        self.times: list[Adapters] = []

    def _report(self, adapters: Adapters) -> None:
        self.times.append(adapters)

    async def next(self) -> Adapters:
        """Return the next report."""
        before = len(self.times)
        await eventually(lambda: len(self.times) > before)
        return self.times[-1]


async def test_changes_are_gathered() -> None:
    reports = Reports()
    reports.found.listed("a", SQL)
    reports.found.listed("b", LAW)
    reports.found.listed("c", frozenset())
    assert await reports.next() == {"a": SQL, "b": LAW}
    assert len(reports.times) == 1


async def test_nothing_is_reported_without_a_change() -> None:
    reports = Reports()
    reports.found.listed("a", SQL)
    await reports.next()
    reports.found.listed("a", SQL)
    reports.found.seen("a", SQL)
    reports.found.not_listed("b")
    reports.found.keep_only(["a"])
    await asyncio.sleep(0.1)
    assert len(reports.times) == 1


async def test_adapters_in_use_count_until_there_is_a_list() -> None:
    reports = Reports()
    reports.found.seen("a", SQL)
    assert await reports.next() == {"a": SQL}
    reports.found.seen("a", LAW)
    assert await reports.next() == {"a": BOTH}
    reports.found.listed("a", LAW)
    assert await reports.next() == {"a": LAW}
    reports.found.not_listed("a")
    assert await reports.next() == {"a": BOTH}


async def test_empty_list_counts_as_a_list() -> None:
    reports = Reports()
    reports.found.seen("a", SQL)
    await reports.next()
    reports.found.listed("a", frozenset())
    assert await reports.next() == {}


async def test_number_of_adapters_in_use_is_limited() -> None:
    reports = Reports()
    for number in range(0, 5 * MOST_ADAPTERS, 500):
        reports.found.seen("a", frozenset(f"adapter-{number + i}" for i in range(700)))
    (adapters,) = (await reports.next()).values()
    assert len(adapters) == MOST_ADAPTERS


async def test_removed_endpoint_is_forgotten() -> None:
    reports = Reports()
    reports.found.listed("a", SQL)
    reports.found.seen("b", LAW)
    await reports.next()
    reports.found.keep_only(["b"])
    assert await reports.next() == {"b": LAW}
    reports.found.keep_only([])
    assert await reports.next() == {}


async def test_nothing_is_reported_after_close() -> None:
    reports = Reports()
    reports.found.listed("a", SQL)
    reports.found.close()
    await asyncio.sleep(0.05)
    assert reports.times == []
