from __future__ import annotations

import json

from extproc.adapters.vllm.readings import MODELS
from tests.adapters.documents import eventually
from tests.adapters.vllm.scraper.scenes import Start
from tests.adapters.vllm.servers import Scene, Server, model, response


class TestContextLength:
    def length(self, scene: Scene) -> int | None:
        snapshot = scene.router.catalog.models["base"].snapshot
        return scene.router.fleet.context_lengths.of(snapshot)

    def says(self, server: Server, tokens: object) -> None:
        card = {"id": "base", "parent": None, "max_model_len": tokens}
        server.responses[MODELS] = response(json.dumps({"data": [card]}).encode())

    async def test_is_read_with_the_adapters(self, scene: Scene, start: Start) -> None:
        one, two = await start(), await start()
        self.says(one, 8192)
        self.says(two, 4096)
        scene.configure(model(one, two))
        await eventually(lambda: self.length(scene) == 4096)
        self.says(two, None)
        await eventually(lambda: self.length(scene) == 8192)

    async def test_is_removed_with_its_endpoint(self, scene: Scene, start: Start) -> None:
        one, two = await start(), await start()
        self.says(two, 4096)
        scene.configure(model(one, two))
        await eventually(lambda: self.length(scene) == 4096)
        scene.configure(model(one))
        scene.configure(model(one, two, discoverAdapters=False))
        assert self.length(scene) is None

    async def test_is_removed_when_the_list_is_denied(self, scene: Scene, server: Server) -> None:
        self.says(server, 4096)
        scene.configure(model(server))
        await eventually(lambda: self.length(scene) == 4096)
        server.responses[MODELS] = response(b"{}", "401 Unauthorized")
        await eventually(lambda: self.length(scene) is None)
