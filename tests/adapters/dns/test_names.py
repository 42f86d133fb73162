from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from extproc.adapters.dns.lookup import LookupFailed, NoAddresses, Resolved, Unanswered
from extproc.adapters.dns.names import (
    HOLD_SECONDS,
    LONGEST_SECONDS,
    MISSING_SECONDS,
    MOST_AT_ONCE,
    SHORTEST_SECONDS,
    START_SECONDS,
    Name,
    Names,
)
from extproc.adapters.dns.resolver import Resolver
from tests.adapters.dns.server import DnsServer, FakeTime, a, settle
from tests.adapters.documents import eventually

GONE = NoAddresses("the name does not exist")
DOWN = Unanswered("no response from DNS")


class Scene:
    """A name, a resolver with scripted results, and a clock that stands still."""

    def __init__(self) -> None:
        self.result: Resolved | LookupFailed = Resolved(("10.0.0.1",), 10)
        self.lookups = 0
        self.results = Counter[str]()
        self.changes: list[tuple[str, ...]] = []
        self.time = FakeTime()
        self.names = Names(
            self._resolve, self, Random(0), clock=self.time.clock, sleep=self.time.sleep
        )

    async def subscribe(self) -> Name:
        """Subscribe to the name and wait for its first lookup."""
        self.name = self.names.subscribe("vllm", self._changed)
        await settle()
        return self.name

    def looked_up(self, result: str) -> None:
        self.results[result] += 1

    async def _resolve(self, _: str) -> Resolved:
        self.lookups += 1
        if isinstance(self.result, LookupFailed):
            raise self.result
        return self.result

    def _changed(self) -> None:
        self.changes.append(self.name.addresses)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    for name in list(scene.names._names.values()):
        await name.stop()


class TestResolvedName:
    @pytest.mark.parametrize(
        ("ttl", "seconds"),
        [(10, 10), (0, SHORTEST_SECONDS), (0.5, SHORTEST_SECONDS), (600, LONGEST_SECONDS)],
    )
    async def test_is_looked_up_again_when_its_ttl_ends_within_limits(
        self, ttl: float, seconds: float, scene: Scene
    ) -> None:
        scene.result = Resolved(("10.0.0.1",), ttl)
        await scene.subscribe()
        await scene.time.advance(seconds - 0.01)
        assert scene.lookups == 1
        await scene.time.advance(0.01)
        assert scene.lookups == 2
        assert scene.results == {"ok": 2}

    async def test_notifies_subscribers_of_changes_only(self, scene: Scene) -> None:
        await scene.subscribe()
        await scene.time.advance(10)
        scene.result = Resolved(("10.0.0.3", "10.0.0.2"), 10)
        await scene.time.advance(20)
        assert scene.lookups == 4
        assert scene.changes == [("10.0.0.1",), ("10.0.0.2", "10.0.0.3")]

    async def test_is_looked_up_once_for_all_subscribers(self, scene: Scene) -> None:
        name = await scene.subscribe()
        assert scene.names.subscribe("vllm", lambda: None) is name
        await settle()
        assert scene.lookups == 1

    async def test_is_not_looked_up_without_subscribers(self, scene: Scene) -> None:
        name = await scene.subscribe()
        other = scene.changes.clear
        scene.names.subscribe("vllm", other)
        await scene.names.unsubscribe(name, other)
        await scene.time.advance(10)
        assert scene.lookups == 2
        await scene.names.unsubscribe(name, scene._changed)
        await scene.time.advance(100)
        assert scene.lookups == 2


class TestLookupWithoutResponse:
    async def test_keeps_the_last_addresses_for_any_time(self, scene: Scene) -> None:
        name = await scene.subscribe()
        scene.result = DOWN
        await scene.time.advance(3600)
        assert list(name.addresses) == ["10.0.0.1"]
        assert scene.changes == [("10.0.0.1",)]
        assert scene.time.clock() - name.confirmed_at == 3600

    async def test_is_repeated_with_backoff(self, scene: Scene) -> None:
        scene.result = DOWN
        await scene.subscribe()
        await scene.time.advance(300)
        waits = scene.time.sleeps
        assert waits[0] < 1
        assert 15 <= waits[-1] <= 30
        scene.result = Resolved(("10.0.0.1",), 10)
        await scene.time.advance(30)
        scene.result = DOWN
        await scene.time.advance(20)
        waits = waits[len(waits) - 1 - waits[::-1].index(10) :]
        assert waits[1] < 1

    async def test_is_logged_once_for_each_cause_and_at_recovery(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "extproc.discovery")
        await scene.subscribe()
        for result in (DOWN, GONE, Resolved(("10.0.0.1",), 10)):
            scene.result = result
            await scene.time.advance(100)
        logged = [
            (one.levelname, one.getMessage(), one.__dict__["fields"]) for one in caplog.records
        ]
        unresolved = ("WARNING", "endpoint name not resolved")
        assert logged == [
            (*unresolved, {"host": "vllm", "why": str(DOWN), "addresses_kept": 1}),
            (*unresolved, {"host": "vllm", "why": str(GONE), "addresses_kept": 1}),
            ("INFO", "endpoint name resolved", {"host": "vllm"}),
        ]

    async def test_delays_the_start_for_a_limited_time(self, scene: Scene) -> None:
        scene.result = DOWN
        name = await scene.subscribe()
        assert name.attempted.is_set()
        await scene.time.advance(START_SECONDS - 0.01)
        assert not name.synced
        await scene.time.advance(0.01)
        assert name.synced
        assert list(name.addresses) == []

    async def test_does_not_prevent_a_later_recovery(self, scene: Scene) -> None:
        scene.result = DOWN
        name = await scene.subscribe()
        scene.result = Resolved(("10.0.0.1",), 10)
        await scene.time.advance(2)
        assert (name.addresses, name.synced, name.trouble) == (("10.0.0.1",), True, None)


class TestResponseWithoutAddresses:
    async def test_counts_as_first_response(self, scene: Scene) -> None:
        scene.result = GONE
        name = await scene.subscribe()
        assert (name.synced, name.addresses) == (True, ())

    async def test_removes_addresses_only_after_a_while(self, scene: Scene) -> None:
        """DNS responds so for a Service that scaled to zero, but sometimes also in error."""
        name = await scene.subscribe()
        scene.result = GONE
        await scene.time.advance(10 + HOLD_SECONDS - 0.01)
        assert list(name.addresses) == ["10.0.0.1"]
        await scene.time.advance(0.01)
        assert list(name.addresses) == []
        assert scene.changes == [("10.0.0.1",), ()]
        assert name.confirmed_at == scene.time.clock()

    async def test_time_starts_again_after_a_recovery(self, scene: Scene) -> None:
        name = await scene.subscribe()
        for _ in range(4):
            scene.result = GONE
            await scene.time.advance(HOLD_SECONDS)
            scene.result = Resolved(("10.0.0.1",), 10)
            await scene.time.advance(10)
        assert list(name.addresses) == ["10.0.0.1"]
        assert scene.changes == [("10.0.0.1",)]

    async def test_is_repeated_soon_to_detect_a_start_from_zero(self, scene: Scene) -> None:
        scene.result = GONE
        name = await scene.subscribe()
        await scene.time.advance(3600)
        assert set(scene.time.sleeps) == {MISSING_SECONDS}
        scene.result = Resolved(("10.0.0.1",), 10)
        await scene.time.advance(MISSING_SECONDS)
        assert list(name.addresses) == ["10.0.0.1"]


async def test_number_of_concurrent_lookups_is_limited() -> None:
    running = most = 0
    free = asyncio.Event()

    async def resolve(_: str) -> Resolved:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await free.wait()
        running -= 1
        return Resolved(("10.0.0.1",), 10)

    time, listener = FakeTime(), Scene()
    names = Names(resolve, listener, Random(0), clock=time.clock, sleep=time.sleep)
    followed = [names.subscribe(f"vllm-{i}", lambda: None) for i in range(3 * MOST_AT_ONCE)]
    await settle()
    free.set()
    await eventually(lambda: all(name.attempted.is_set() for name in followed))
    assert most == MOST_AT_ONCE
    for name in followed:
        await name.stop()


class TestWithRealServer:
    async def test_query_after_the_ttl_brings_changes(self, server: DnsServer) -> None:
        server.records = a({"vllm.test.": ["10.0.0.1"]}, ttl=12)
        time, listener = FakeTime(), Scene()
        names = Names(
            Resolver(server.address, seconds=2).resolve,
            listener,
            Random(0),
            clock=time.clock,
            sleep=time.sleep,
        )
        name = names.subscribe("vllm.test.", lambda: None)
        await eventually(lambda: len(time.sleeps) == 1)
        assert list(name.addresses) == ["10.0.0.1"]

        server.records = a({"vllm.test.": ["10.0.0.2", "10.0.0.3"]}, ttl=5)
        await time.advance(11.9)
        assert server.asked("vllm.test.") == 1
        await time.advance(0.1)
        await eventually(lambda: len(time.sleeps) == 2)
        assert list(name.addresses) == ["10.0.0.2", "10.0.0.3"]

        await server.stop()
        await time.advance(5)
        await eventually(lambda: len(time.sleeps) == 3)
        assert list(name.addresses) == ["10.0.0.2", "10.0.0.3"]
        assert name.trouble is not None

        await server.start()
        await time.advance(1)
        await eventually(lambda: len(time.sleeps) == 4)
        assert name.trouble is None
        assert time.sleeps == [12, 5, time.sleeps[2], 5]
        await name.stop()
