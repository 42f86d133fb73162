from __future__ import annotations

import asyncio
import logging

import pytest

from extproc.adapters.vllm.readings import METRICS, MODELS, Result
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.routing.catalog import Catalog
from tests.adapters.documents import eventually
from tests.adapters.vllm.scraper.scenes import Start, hangs, known
from tests.adapters.vllm.servers import Scene, Server, in_use, model, model_list, response


class TestAdapter:
    async def test_is_routable_while_it_is_listed(
        self, scene: Scene, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        one, two = await start(), await start()
        scene.configure(model(one, two, adapters=["configured"]))
        await eventually(lambda: scene.has_read(one, two))
        assert not known(scene, "sql")

        one.has("sql")
        await eventually(lambda: known(scene, "sql"))
        resolved = scene.router.resolve("sql", None, {})
        assert scene.router.decide(resolved).address == one.address
        assert scene.router.catalog.found == {one.address: {"sql"}}

        one.has()
        two.has("law")
        await eventually(lambda: known(scene, "law") and not known(scene, "sql"))
        assert scene.adapters == {"base": {"configured", "law"}}
        logged = [r.__dict__["fields"] for r in caplog.records if r.message == "adapters changed"]
        assert {fields["came"] for fields in logged} >= {"sql", "law"}
        assert "sql" in {fields["left"] for fields in logged}

    async def test_is_not_discovered_unless_a_model_wants_it(
        self, scene: Scene, server: Server
    ) -> None:
        server.responses[METRICS] = response(in_use("sql"))
        scene.configure(model(server, discoverAdapters=False))
        await eventually(lambda: server.count(METRICS) >= 3)
        assert scene.router.catalog.found == {}

    @pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found"])
    async def test_in_use_counts_without_a_list(
        self, scene: Scene, server: Server, status: str
    ) -> None:
        server.responses = {
            METRICS: response(in_use("sql")),
            MODELS: response(b"", status),
        }
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.responses[METRICS] = response(in_use("law"))
        await eventually(lambda: known(scene, "law"))
        assert known(scene, "sql"), "it may still be there"

    async def test_in_use_but_not_listed_is_removed(self, scene: Scene, server: Server) -> None:
        server.responses[METRICS] = response(in_use("sql"))
        server.has("sql", "law")
        scene.configure(model(server))
        await eventually(lambda: scene.adapters == {"base": {"sql", "law"}})
        server.has("law")
        await eventually(lambda: scene.adapters == {"base": {"law"}})

    async def test_stays_while_the_list_fails_temporarily(
        self, scene: Scene, server: Server
    ) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.responses[MODELS] = response(b"busy", "503 Service Unavailable")
        await eventually(lambda: scene.results[MODELS, Result.STATUS] >= 2)
        assert known(scene, "sql")
        server.responses[MODELS] = response(b"no key", "401 Unauthorized")
        await eventually(lambda: not known(scene, "sql"))

    async def test_is_removed_when_another_pod_has_the_address(
        self, scene: Scene, server: Server
    ) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql") and scene.has_read(server))
        server.always(hangs)
        served = scene.router.catalog.models["base"]
        moved = served.at([Endpoint(server.address, "ns/another")], {})
        scene.router.publish(Catalog.of([moved], {}, scene.router.catalog.found))
        assert scene.reading(server.address) is None
        await eventually(lambda: not known(scene, "sql"))

    @pytest.mark.usefixtures("impatient")
    async def test_stays_while_the_list_is_unreachable(self, scene: Scene, server: Server) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.responses[MODELS] = hangs
        await eventually(lambda: scene.results[MODELS, "timeout"] >= 2)
        assert known(scene, "sql")

    async def test_is_removed_with_its_endpoint(self, scene: Scene, start: Start) -> None:
        stays, leaves = await start(), await start()
        leaves.has("sql")
        scene.configure(model(stays, leaves))
        await eventually(lambda: known(scene, "sql"))
        scene.configure(model(stays))
        assert not known(scene, "sql")
        await eventually(lambda: scene.router.catalog.found == {})
        scene.configure(model(stays, leaves))
        await eventually(lambda: known(scene, "sql"))

    async def test_is_removed_when_discovery_is_turned_off(
        self, scene: Scene, server: Server
    ) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        scene.configure(model(server, discoverAdapters=False))
        assert not known(scene, "sql")
        await eventually(lambda: scene.router.catalog.found == {})

    async def test_in_a_list_that_arrives_after_discovery_is_turned_off_is_ignored(
        self, scene: Scene, server: Server
    ) -> None:
        turned_off = asyncio.Event()

        async def respond_late(writer: asyncio.StreamWriter) -> None:
            await turned_off.wait()
            writer.write(response(model_list("sql")))

        server.responses[MODELS] = respond_late
        scene.configure(model(server))
        await eventually(lambda: server.count(MODELS) == 1)
        scene.configure(model(server, discoverAdapters=False))
        turned_off.set()
        await eventually(lambda: scene.results[MODELS, Result.OK] == 1)
        scene.scraper._found.flush()
        assert scene.router.catalog.found == {}

    async def test_many_adapters_do_not_flood_the_log(
        self, scene: Scene, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        server.responses[MODELS] = response(model_list(*(f"adapter-{i:03}" for i in range(100))))
        scene.configure(model(server))
        await eventually(lambda: known(scene, "adapter-099"))
        (logged,) = (
            r.__dict__["fields"] for r in caplog.records if r.message == "adapters changed"
        )
        assert logged["came"].endswith("adapter-009 and 90 more")
