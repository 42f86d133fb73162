from __future__ import annotations

import pytest

from tests.adapters.configuration.config_map.scenes import Scene
from tests.adapters.documents import LLAMA, QWEN, eventually
from tests.extent import PATIENCE

pytestmark = pytest.mark.usefixtures("quick")


class TestAge:
    @pytest.mark.usefixtures("short_watches")
    async def test_starts_again_with_each_watch(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await eventually(lambda: scene.source.age > 0.4)
        await eventually(lambda: scene.source.age < 0.4)

    async def test_grows_while_the_watch_is_refused(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.watched()
        await scene.server.faults(forbidden=["configmaps"])
        await scene.server.drop_watches()
        watches = {"resource": "configmaps", "result": "403"}
        name = "extproc_discovery_watches_total"
        await eventually(lambda: scene.served.sample(name, **watches) >= 1)
        refused = scene.source.age
        await scene.put(QWEN)
        await eventually(lambda: scene.served.sample(name, **watches) >= 4)
        assert scene.source.age > refused
        assert scene.served.models == ["llama"]
        assert scene.served.sample("extproc_config_last_reload_successful") == 1
        await scene.server.faults(forbidden=[])
        await scene.serves("qwen")
        assert scene.source.age < PATIENCE

    async def test_grows_from_the_start_without_a_server(self, scene: Scene) -> None:
        await eventually(lambda: scene.source.age > 0.01)
