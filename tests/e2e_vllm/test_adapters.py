"""LoRA adapters are separate models, served by the engines that have loaded them."""

from __future__ import annotations

from pathlib import Path

from extproc.lab.stack.processes import until
from tests.e2e.scene import MODEL, Json, chat
from tests.e2e_vllm.scene import AGREEMENT_SECONDS, LOADED_LATER, RESIDENT, Launch, Options


def deterministic_request(name: str) -> Json:
    """Return a request whose response depends only on the model."""
    return chat("hello", model=name, tokens=24, temperature=0)


async def test_adapter_serves_requests_with_its_name(launch: Launch) -> None:
    scene = await launch(Options(strategy="RoundRobin", adapters=[RESIDENT]))
    responses: dict[str, set[str]] = {MODEL: set(), RESIDENT: set()}
    for name, texts in responses.items():
        # Two requests each, because RoundRobin uses both engines in turn.
        for _ in range(2):
            reply = await scene.send(deterministic_request(name))
            assert reply.status == 200
            assert reply.json()["model"] == name
            texts.add(reply.json()["choices"][0]["message"]["content"])
    assert [len(texts) for texts in responses.values()] == [1, 1]
    assert responses[MODEL] != responses[RESIDENT]
    assert [line["adapter"] for line in await scene.access_log(4)] == ["", "", RESIDENT, RESIDENT]


async def test_adapter_loaded_at_run_time_is_found_on_its_engine(
    launch: Launch, tiny: Path
) -> None:
    scene = await launch(Options(strategy="LowLatency"))

    async def result() -> int | str:
        """Return 200 or the error code: a string from the sidecar, 404 from an engine."""
        reply = await scene.send(deterministic_request(LOADED_LATER))
        code: int | str = reply.status if reply.status == 200 else reply.error()["code"]
        return code

    async def is_served() -> bool:
        return await result() == 200

    async def is_forgotten() -> bool:
        return await result() == "model_not_found"

    assert await is_forgotten()
    await scene.first.load_adapter(LOADED_LATER, tiny / LOADED_LATER)
    try:
        await until(is_served, AGREEMENT_SECONDS, f"{LOADED_LATER} to be served")
        assert {await result() for _ in range(6)} == {200}
    finally:
        await scene.first.unload_adapter(LOADED_LATER)
    assert await result() in (404, "model_not_found")
    await until(is_forgotten, AGREEMENT_SECONDS, f"{LOADED_LATER} to be forgotten")
    served = [line for line in scene.envoy.access_log() if line["status"] == 200]
    assert {line["endpoint"] for line in served} == {scene.first.address}
    assert {line["adapter"] for line in served} == {LOADED_LATER}
