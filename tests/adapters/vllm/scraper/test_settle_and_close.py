from __future__ import annotations

import asyncio

from extproc.adapters.vllm.readings import MODELS
from tests.adapters.documents import eventually
from tests.adapters.vllm.scraper.scenes import Start, hangs, known
from tests.adapters.vllm.servers import Scene, Server, model, model_list, response
from tests.extent import PATIENCE


class TestClose:
    async def test_leaves_nothing_running(self, start: Start) -> None:
        healthy, hanging = await start(), await start()
        hanging.always(hangs)
        scene = Scene()
        scene.configure(model(healthy, hanging, "127.0.0.1:1"))
        await eventually(lambda: scene.has_read(healthy) and hanging.asked != [])
        running = asyncio.all_tasks()
        await scene.scraper.close()
        assert healthy.open == 0 or await _closes(healthy)
        ours = [task for task in running if "ScrapedEndpoint" in repr(task)]
        assert len(ours) == 3
        assert all(task.done() for task in ours)
        asked = len(healthy.asked)
        await asyncio.sleep(0.1)
        assert len(healthy.asked) == asked

    async def test_works_before_the_first_reading(self) -> None:
        await Scene().scraper.close()


async def _closes(server: Server) -> bool:
    await eventually(lambda: server.open == 0)
    return True


class TestSettle:
    async def test_waits_until_adapters_are_known(self, scene: Scene, start: Start) -> None:
        async def after_a_while(writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.1)
            writer.write(response(model_list("sql")))

        slow, other = await start(), await start()
        slow.responses[MODELS] = after_a_while
        scene.configure(model(slow, other))
        await scene.scraper.settle(2 * PATIENCE)
        assert known(scene, "sql")

    async def test_does_not_wait_for_absent_endpoints(self, scene: Scene, server: Server) -> None:
        server.has("sql")
        scene.configure(model(server, "127.0.0.1:1"))
        async with asyncio.timeout(PATIENCE):
            await scene.scraper.settle(2 * PATIENCE)
        assert known(scene, "sql")

    async def test_waits_for_a_limited_time(self, scene: Scene, server: Server) -> None:
        server.always(hangs)
        scene.configure(model(server))
        async with asyncio.timeout(PATIENCE):
            await scene.scraper.settle(0.1)

    async def test_returns_at_once_without_endpoints_to_read(
        self, scene: Scene, server: Server
    ) -> None:
        scene.configure(model(server, strategy="PrefixHash"))
        await scene.scraper.settle(0)
