"""PrefixCache learns how much an engine keeps outside its KV cache.

vLLM cannot offload to host memory on a CPU. So the engine has vLLM's example connector, which
writes the blocks of each prompt to a directory and loads them again. It has no limit.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from extproc.lab.real_vllm.engines import BLOCK_SIZE, RealFleet, RealVllm
from extproc.lab.stack.processes import until
from tests.e2e.scene import MODEL, Json, chat
from tests.e2e_vllm.conftest import start_scene
from tests.e2e_vllm.scene import AGREEMENT_SECONDS, Options, RecordFigure, VllmScene

BLOCKS = 100
"""Blocks of the KV cache: room for two prompts."""
PROMPTS = 15
"""Prompts that come by turns. A letter is a token here, which the sidecar can only learn while the
engine is idle. So it expects room for nine."""
LETTERS = 1_400
ROUNDS = 6


@pytest.fixture
async def scene(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmScene]:
    directory = tmp_path_factory.mktemp("kv")  # the paths of sockets must be short
    store = {"shared_storage_path": str(directory / "store")}
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": store,
    }
    flags = ["--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "2000"]
    flags += ["--kv-transfer-config", json.dumps(connector)]
    engine = RealVllm(9, tiny / "model", MODEL, directory, flags=flags)
    async with AsyncExitStack() as cleanup:
        fleet = RealFleet([engine])
        cleanup.push_async_callback(fleet.stop)
        await fleet.start()
        yield await start_scene(Options(strategy="PrefixCache"), fleet, directory, cleanup)


async def signals(scene: VllmScene) -> Json:
    (endpoint,) = (await scene.sidecar.state())[MODEL]["endpoints"]
    return endpoint["signals"] or {}


async def test_predicts_hits_in_a_store_outside_the_engine(
    scene: VllmScene, record_figure: RecordFigure
) -> None:
    reported = BLOCKS * BLOCK_SIZE

    async def is_read() -> bool:
        tokens: int = (await signals(scene)).get("cache_tokens", 0)
        return 0 < tokens <= reported

    await until(is_read, AGREEMENT_SECONDS, "the reported size")
    for _ in range(ROUNDS):
        for number in range(PROMPTS):
            text = f"{number:03}" * (LETTERS // 3)
            assert (await scene.send(chat(text, tokens=2))).status == 200
    shown = await signals(scene)
    record_figure("cache with a connector", f"{shown['cache_tokens']:,} tokens of {reported:,}")
    assert shown["cached_tokens"] > 0.5 * shown["prompt_tokens"]
    assert shown["cache_tokens"] > 1.5 * reported
