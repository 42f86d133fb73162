from __future__ import annotations

import asyncio

from extproc.adapters.vllm.found_adapters import FoundAdapters
from extproc.adapters.vllm.names import MOST_ADAPTERS
from extproc.core.routing.catalog import Adapters
from tests.adapters.documents import eventually

SQL, LAW, BOTH = frozenset({"sql"}), frozenset({"law"}), frozenset({"sql", "law"})


class Told:
    """What was told, in order."""

    def __init__(self) -> None:
        self.found = FoundAdapters(self._tell)
        self.times: list[Adapters] = []

    def _tell(self, adapters: Adapters) -> None:
        self.times.append(adapters)

    async def next(self) -> Adapters:
        """What is told next."""
        before = len(self.times)
        await eventually(lambda: len(self.times) > before)
        return self.times[-1]


async def test_changes_are_gathered() -> None:
    told = Told()
    told.found.listed("a", SQL)
    told.found.listed("b", LAW)
    told.found.listed("c", frozenset())
    assert await told.next() == {"a": SQL, "b": LAW}
    assert len(told.times) == 1


async def test_nothing_is_reported_without_a_change() -> None:
    told = Told()
    told.found.listed("a", SQL)
    await told.next()
    told.found.listed("a", SQL)
    told.found.seen("a", SQL)
    told.found.not_listed("b")
    told.found.keep_only(["a"])
    await asyncio.sleep(0.1)
    assert len(told.times) == 1


async def test_adapters_in_use_count_until_there_is_a_list() -> None:
    told = Told()
    told.found.seen("a", SQL)
    assert await told.next() == {"a": SQL}
    told.found.seen("a", LAW)
    assert await told.next() == {"a": BOTH}
    told.found.listed("a", LAW)
    assert await told.next() == {"a": LAW}
    told.found.not_listed("a")
    assert await told.next() == {"a": BOTH}


async def test_empty_list_counts_as_a_list() -> None:
    told = Told()
    told.found.seen("a", SQL)
    await told.next()
    told.found.listed("a", frozenset())
    assert await told.next() == {}


async def test_number_of_adapters_in_use_is_limited() -> None:
    told = Told()
    for number in range(0, 5 * MOST_ADAPTERS, 500):
        told.found.seen("a", frozenset(f"adapter-{number + i}" for i in range(700)))
    (adapters,) = (await told.next()).values()
    assert len(adapters) == MOST_ADAPTERS


async def test_removed_endpoint_is_forgotten() -> None:
    told = Told()
    told.found.listed("a", SQL)
    told.found.seen("b", LAW)
    await told.next()
    told.found.keep_only(["b"])
    assert await told.next() == {"b": LAW}
    told.found.keep_only([])
    assert await told.next() == {}


async def test_nothing_is_reported_after_close() -> None:
    told = Told()
    told.found.listed("a", SQL)
    told.found.close()
    await asyncio.sleep(0.05)
    assert told.times == []
