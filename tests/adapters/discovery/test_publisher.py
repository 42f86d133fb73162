"""Endpoints take effect without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from extproc.adapters.discovery import publisher as module
from extproc.adapters.discovery.pace import Pace
from extproc.adapters.discovery.publisher import Publisher
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import Source
from tests.core.builders import by_service, endpoints, model_spec, router, strategy_of

SERVICE = by_service().source
assert SERVICE is not None
SOURCE: Source = SERVICE

FEW = tuple(endpoints(4))
MANY = tuple(endpoints(200))
OTHERS = tuple(Endpoint(f"10.0.1.{i + 1}:8000", f"default/new-{i}") for i in range(200))


def found(serving: Router, model: str = "llama") -> tuple[Endpoint, ...]:
    return serving.catalog.models[model].snapshot.endpoints


def in_order(those: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    return tuple(sorted(those, key=lambda one: one.name))


@pytest.fixture
def serving() -> Router:
    return router(by_service(), model_spec("qwen"))


@pytest.fixture
async def publisher(serving: Router, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Publisher]:
    monkeypatch.setattr(module, "Pace", lambda: Pace(wait=lambda seconds: None))
    made = Publisher(serving)
    yield made
    await made.close()


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Rings are built while this event is set."""
    running = threading.Event()
    running.set()
    monkeypatch.setattr(module, "Pace", lambda: running.wait)
    return running


class TestPublisher:
    async def test_small_change_takes_effect_at_once(
        self, publisher: Publisher, serving: Router
    ) -> None:
        publisher.publish(SOURCE, FEW)
        assert found(serving) == FEW

    async def test_large_change_is_built_outside_of_the_event_loop(
        self, publisher: Publisher, serving: Router, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: list[threading.Thread] = []

        def pace() -> Any:
            return lambda: threads.append(threading.current_thread())

        monkeypatch.setattr(module, "Pace", pace)
        publisher.publish(SOURCE, MANY)
        assert found(serving) == (), "not yet"
        assert serving.decide(serving.resolve("qwen", None, {})).address
        await publisher.settle()
        assert found(serving) == in_order(MANY)
        assert len(threads) > 10, "the ring was built in steps"
        assert threading.main_thread() not in threads

    async def test_endpoints_that_leave_are_not_chosen_while_rings_are_built(
        self, publisher: Publisher, serving: Router, paused: threading.Event
    ) -> None:
        publisher.publish(SOURCE, MANY)
        await publisher.settle()
        paused.clear()
        moved = Endpoint("10.0.9.9:8000", MANY[20].name)
        publisher.publish(SOURCE, (moved, *MANY[21:], *OTHERS[:20]))
        assert found(serving) == in_order([moved, *MANY[21:]])
        publisher.publish(SOURCE, (*MANY[30:], *OTHERS[:30]))
        assert found(serving) == in_order(MANY[30:])
        publisher.publish(SOURCE, (*MANY[29:], *OTHERS[:30]))
        assert found(serving) == in_order(MANY[29:]), "one is back"
        paused.set()
        await publisher.settle()
        assert found(serving) == in_order((*MANY[29:], *OTHERS[:30]))
        assert serving.catalog.models["llama"].snapshot.ring.is_whole

    async def test_endpoints_that_leave_meanwhile_do_not_return_with_the_built_rings(
        self, publisher: Publisher, serving: Router, paused: threading.Event
    ) -> None:
        published: list[tuple[Endpoint, ...]] = []
        publisher.publish(SOURCE, MANY)
        await publisher.settle()
        serving.subscribe(lambda _: published.append(found(serving)))
        paused.clear()
        publisher.publish(SOURCE, (*MANY[20:], *OTHERS[:20]))
        await asyncio.sleep(0)  # the thread starts
        publisher.publish(SOURCE, (*MANY[40:], *OTHERS[:40]))
        paused.set()
        await publisher.settle()
        assert len(published) == 4
        assert not any(set(MANY[:40]) & set(those) for those in published[1:])
        assert published[2] == in_order((*MANY[40:], *OTHERS[:20]))
        assert published[3] == in_order((*MANY[40:], *OTHERS[:40]))

    async def test_only_removals_take_effect_at_once_and_shrink_the_ring_later(
        self, publisher: Publisher, serving: Router
    ) -> None:
        publisher.publish(SOURCE, MANY)
        await publisher.settle()
        publisher.publish(SOURCE, MANY[50:])
        snapshot = serving.catalog.models["llama"].snapshot
        assert snapshot.endpoints == in_order(MANY[50:])
        assert not snapshot.ring.is_whole
        await publisher.settle()
        assert serving.catalog.models["llama"].snapshot.ring.is_whole
        assert found(serving) == in_order(MANY[50:])

    async def test_endpoints_stay_until_most_new_ones_are_on_the_ring(
        self, publisher: Publisher, serving: Router
    ) -> None:
        """Requests would get 503, or all go to the few that stay."""
        publisher.publish(SOURCE, MANY)
        await publisher.settle()
        publisher.publish(SOURCE, (*MANY[:50], *OTHERS))
        assert found(serving) == in_order(MANY)
        await publisher.settle()
        assert found(serving) == in_order((*MANY[:50], *OTHERS))

    async def test_no_endpoints_take_effect_at_once(
        self, publisher: Publisher, serving: Router
    ) -> None:
        publisher.publish(SOURCE, MANY)
        await publisher.settle()
        publisher.publish(SOURCE, ())
        assert found(serving) == ()

    async def test_last_change_counts(self, publisher: Publisher, serving: Router) -> None:
        publisher.publish(SOURCE, MANY)
        publisher.publish(SOURCE, MANY[1:])
        publisher.publish(SOURCE, FEW)
        await publisher.settle()
        assert found(serving) == FEW

    async def test_change_of_the_configuration_meanwhile_stays(
        self, publisher: Publisher, serving: Router
    ) -> None:
        publisher.publish(SOURCE, MANY)
        specs = [by_service(), by_service("other"), model_spec("new")]
        serving.publish(revise(serving.catalog, specs, strategy_of))
        await publisher.settle()
        assert list(serving.catalog.models) == ["llama", "other", "new"]
        assert found(serving) == found(serving, "other") == in_order(MANY)

    async def test_source_that_leaves_meanwhile_is_ignored(
        self, publisher: Publisher, serving: Router
    ) -> None:
        publisher.publish(SOURCE, MANY)
        serving.publish(revise(serving.catalog, [model_spec("new")], strategy_of))
        await publisher.settle()
        assert list(serving.catalog.models) == ["new"]

    async def test_failure_does_not_stop_later_changes(
        self,
        publisher: Publisher,
        serving: Router,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def fail(*_: object) -> Catalog:
            raise ValueError

        with monkeypatch.context() as patched:
            patched.setattr(module, "with_rings_of", fail)
            publisher.publish(SOURCE, MANY)
            await publisher.settle()
        assert [one.getMessage() for one in caplog.records] == ["endpoints not published"]
        publisher.publish(SOURCE, MANY)
        await publisher.settle()
        assert found(serving) == in_order(MANY)

    async def test_close_drops_what_is_not_in_force(
        self, publisher: Publisher, serving: Router
    ) -> None:
        publisher.publish(SOURCE, MANY)
        await publisher.close()
        assert found(serving) == ()


class TestPace:
    def test_leaves_nine_tenths_of_the_time(self) -> None:
        now, waits = 0.0, list[float]()

        def wait(seconds: float) -> None:
            nonlocal now
            now += seconds
            waits.append(seconds)

        pace = Pace(lambda: now, wait)
        step = 1 / 1024
        for _ in range(1000):
            now += step / 2
            pace()
        assert sum(waits) == pytest.approx(0.9 * now, rel=0.01)
        assert len(waits) == 333, "after each millisecond of work"
