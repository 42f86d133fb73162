from __future__ import annotations

import gc
import weakref

import pytest

from extproc.adapters.vllm import endpoint, schedule
from extproc.adapters.vllm.readings import METRICS, MODELS
from extproc.core.fleet.endpoint import Endpoint
from tests.adapters.documents import eventually
from tests.adapters.vllm.expositions import BASE
from tests.adapters.vllm.scraper.scenes import Start, hangs
from tests.adapters.vllm.servers import Scene, Server, model, response


class TestEndpoint:
    @pytest.mark.parametrize(
        ("strategy", "discover", "asked"),
        [
            ("PrefixHash", None, set()),
            ("PrefixHash", True, {MODELS}),
            ("LeastQueue", None, {METRICS, MODELS}),
            ("LeastQueue", False, {METRICS}),
        ],
    )
    async def test_receives_only_requests_for_wanted_paths(
        self, scene: Scene, start: Start, strategy: str, discover: bool | None, asked: set[str]
    ) -> None:
        server, other = await start(), await start()
        chosen = model(server, strategy=strategy)
        if discover is not None:
            chosen["discoverAdapters"] = discover
        scene.configure(chosen, model(other, name="other"))
        await eventually(lambda: len(other.asked) >= 4 and set(server.asked) >= asked)
        assert set(server.asked) == asked

    async def test_of_two_models_is_read_once_at_the_shorter_interval(
        self, scene: Scene, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(endpoint.ScrapedEndpoint, "_knows_times", lambda _: True)
        scene.configure(
            model(server, busy=60, idle=60),
            model(server, name="other", strategy="PrefixHash", discoverAdapters=True),
        )
        await eventually(lambda: server.count(MODELS) >= 4)
        # Each path has its own times: one may be about to be read.
        assert abs(server.count(METRICS) - server.count(MODELS)) <= 1
        assert server.connections == 1

    async def test_removed_one_is_not_read_and_its_readings_are_forgotten(
        self, scene: Scene, start: Start
    ) -> None:
        stays, leaves = await start(), await start()
        scene.configure(model(stays, leaves))
        await eventually(lambda: scene.has_read(stays, leaves))
        scene.configure(model(stays))
        await eventually(lambda: leaves.open == 0)
        assert scene.reading(leaves.address) is None
        before, then = len(leaves.asked), len(stays.asked)
        await eventually(lambda: len(stays.asked) > then + 2)
        assert len(leaves.asked) == before

    async def test_removed_one_leaves_no_reference_cycles(self, scene: Scene, start: Start) -> None:
        stays, leaves = await start(), await start()
        scene.configure(model(stays, leaves))
        await eventually(lambda: scene.has_read(stays, leaves))
        followed = weakref.ref(scene.scraper._endpoints[leaves.address])
        gc.disable()
        try:
            scene.configure(model(stays))
            await eventually(lambda: followed() is None)
        finally:
            gc.enable()

    async def test_can_be_removed_during_a_reading(self, scene: Scene, server: Server) -> None:
        server.always(hangs)
        scene.configure(model(server))
        await eventually(lambda: server.asked != [])
        scene.configure(model("127.0.0.1:1", strategy="PrefixHash"))
        await eventually(lambda: server.open == 0)
        server.always(response(BASE.encode()))
        scene.configure(model(server))
        await eventually(lambda: scene.has_read(server))

    async def test_new_strategy_changes_the_readings(self, scene: Scene, server: Server) -> None:
        scene.configure(model(server, strategy="PrefixHash", discoverAdapters=True, idle=60))
        await eventually(lambda: server.asked == [MODELS])
        scene.configure(model(server))
        await eventually(lambda: server.count(METRICS) >= 2 and server.count(MODELS) >= 2)

    async def test_idle_one_is_read_at_the_idle_interval(self, scene: Scene, start: Start) -> None:
        idle, other = await start(), await start()
        idle.responses[METRICS] = response(
            BASE.replace("3.0", "0.0").replace("2.0", "0.0").encode()
        )
        scene.configure(model(idle, idle=60), model(other, name="other"))
        await eventually(lambda: other.count(METRICS) > 5)
        assert idle.asked == [METRICS, MODELS]

    async def test_busy_one_is_read_at_the_busy_interval(
        self, scene: Scene, server: Server
    ) -> None:
        scene.configure(model(server, idle=60))
        await eventually(lambda: server.count(METRICS) > 3)
        assert server.count(MODELS) == 1, "adapters do not change with the load"

    async def test_busy_one_is_read_sooner_while_its_times_are_unknown(
        self, scene: Scene, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schedule, "FIRST_SHARE", 0.001)
        monkeypatch.setattr(schedule, "FIRST_READINGS", 5)
        scene.configure(model(server, busy=60, idle=60))
        await eventually(lambda: server.count(METRICS) == 6)

    async def test_busy_one_whose_times_are_known_is_not_read_sooner(
        self, scene: Scene, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schedule, "FIRST_SHARE", 0.00001)
        monkeypatch.setattr(endpoint.ScrapedEndpoint, "_knows_times", lambda _: True)
        known, other = await start(), await start()
        scene.configure(model(known, busy=60, idle=60), model(other, name="other"))
        await eventually(lambda: other.count(METRICS) > 5)
        assert known.count(METRICS) == 1

    async def test_idle_one_is_read_soon_after_a_request(
        self, scene: Scene, server: Server
    ) -> None:
        server.responses[METRICS] = response(
            BASE.replace("3.0", "0.0").replace("2.0", "0.0").encode()
        )
        scene.configure(model(server, idle=60))
        await eventually(lambda: scene.has_read(server))
        lease = scene.router.fleet.ledger.acquire("base", Endpoint(server.address, ""))
        await eventually(lambda: server.count(METRICS) > 3)
        lease.release()
