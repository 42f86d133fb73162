"""LoRA adapters are models of their own, served by the engines that hold them."""

from __future__ import annotations

from pathlib import Path

from extproc.lab.stack.processes import until
from tests.e2e.scene import MODEL, Json, chat
from tests.e2e_vllm.scene import AGREEMENT_SECONDS, LOADED_LATER, RESIDENT, Launch, Options


def noted(name: str) -> Json:
    """A request whose answer depends on nothing but the model."""
    return chat("hello", model=name, tokens=24, temperature=0)


async def test_an_adapters_name_is_served_by_the_adapter(launch: Launch) -> None:
    scene = await launch(Options(strategy="RoundRobin", adapters=[RESIDENT]))
    answers: dict[str, set[str]] = {MODEL: set(), RESIDENT: set()}
    for name, texts in answers.items():
        # Two each: RoundRobin asks both engines.
        for _ in range(2):
            reply = await scene.send(noted(name))
            assert reply.status == 200
            assert reply.json()["model"] == name
            texts.add(reply.json()["choices"][0]["message"]["content"])
    assert [len(texts) for texts in answers.values()] == [1, 1]
    assert answers[MODEL] != answers[RESIDENT]
    assert [line["adapter"] for line in await scene.access_log(4)] == ["", "", RESIDENT, RESIDENT]


async def test_an_adapter_loaded_at_run_time_is_found_where_it_is(
    launch: Launch, tiny: Path
) -> None:
    scene = await launch(Options(strategy="LowLatency"))

    async def answer() -> int | str:
        """200, or the code of the refusal: the sidecar's is a word, the engines' is 404."""
        reply = await scene.send(noted(LOADED_LATER))
        code: int | str = reply.status if reply.status == 200 else reply.error()["code"]
        return code

    async def is_served() -> bool:
        return await answer() == 200

    async def is_forgotten() -> bool:
        return await answer() == "model_not_found"

    assert await is_forgotten()
    await scene.first.load_adapter(LOADED_LATER, tiny / LOADED_LATER)
    try:
        await until(is_served, AGREEMENT_SECONDS, f"{LOADED_LATER} to be served")
        assert {await answer() for _ in range(6)} == {200}
    finally:
        await scene.first.unload_adapter(LOADED_LATER)
    assert await answer() in (404, "model_not_found")
    await until(is_forgotten, AGREEMENT_SECONDS, f"{LOADED_LATER} to be forgotten")
    served = [line for line in scene.envoy.access_log() if line["status"] == 200]
    assert {line["endpoint"] for line in served} == {scene.first.address}
    assert {line["adapter"] for line in served} == {LOADED_LATER}
