"""Signals of the replicas, which the sidecar reads only if a strategy needs them."""

from __future__ import annotations

import asyncio
import signal

from extproc.lab.stack.processes import until
from tests.e2e.scene import MODEL, Json, Launch, Options, Scene, chat
from tests.extent import PATIENCE

QUICK = ("--time-scale", "50")
LORA = (*QUICK, "--model", MODEL, "--max-loras", "2", "--adapters", "sql")


async def endpoints(scene: Scene) -> dict[str, Json]:
    """Return the endpoints of the model by address."""
    found = (await scene.sidecar.state())[MODEL]["endpoints"]
    return {endpoint["address"]: endpoint for endpoint in found}


async def readings(scene: Scene) -> list[str]:
    """Return the sidecar's metrics that count readings."""
    _, text = await scene.sidecar.get("/metrics")
    return [line for line in text.splitlines() if line.startswith("extproc_signal_readings_total{")]


async def signals_are_known(scene: Scene) -> None:
    async def known() -> bool:
        return all(endpoint["signals"] for endpoint in (await endpoints(scene)).values())

    await until(known, PATIENCE, "signals of all replicas")


async def test_state_has_signals_with_their_age(launch: Launch) -> None:
    scene = await launch(Options(strategy="LeastQueue", replica_arguments=LORA))
    await signals_are_known(scene)
    reply = await scene.send(chat("hello", model="sql"))
    assert reply.status == 200

    # A server has no LoRA metrics before the first request for an adapter. A scrape during the
    # request shows it as running until the next scrape.
    async def adapter_is_reported() -> bool:
        shown = (await endpoints(scene))[reply.replica]["signals"]
        idle = (shown["waiting"], shown["running"], shown["kv_usage"]) == (0, 0, 0)
        return idle and (shown["loaded_adapters"], shown["max_loras"]) == (["sql"], 2)

    await until(adapter_is_reported, PATIENCE, "the adapter to be reported by an idle replica")
    for endpoint in (await endpoints(scene)).values():
        assert endpoint["adapters"] == ["sql"]
        shown = endpoint["signals"]
        assert (shown["waiting"], shown["running"], shown["kv_usage"]) == (0, 0, 0)
        assert 0 <= shown["age_seconds"] <= shown["reported_age_seconds"] < PATIENCE
        assert shown["block_size"] > 0
        assert shown["blocks"] > 0
    _, metrics = await scene.sidecar.get("/metrics")
    assert 'extproc_signal_readings_total{path="/metrics",result="ok"}' in metrics
    assert f'extproc_signals_age_seconds{{endpoint="{reply.replica}",model="{MODEL}"}}' in metrics


async def test_endpoints_are_not_scraped_if_no_strategy_needs_signals(launch: Launch) -> None:
    connections: list[str] = []
    server = await asyncio.start_server(
        lambda reader, writer: connections.append(writer.get_extra_info("peername")), "127.0.0.1", 0
    )
    host, port = server.sockets[0].getsockname()
    scene = await launch(
        Options(replicas=1, more_endpoints=[f"{host}:{port}"], replica_arguments=LORA)
    )
    # Longer than the first readings take in the other tests.
    await asyncio.sleep(1)
    assert [endpoint["signals"] for endpoint in (await endpoints(scene)).values()] == [None, None]
    assert await readings(scene) == []
    assert connections == []
    server.close()


async def test_an_adapter_is_served_while_a_replica_has_loaded_it(launch: Launch) -> None:
    scene = await launch(Options(replicas=2, strategy="LowLatency", replica_arguments=LORA))
    await signals_are_known(scene)
    first, _ = scene.replicas.addresses

    async def result_of(model: str) -> tuple[int, str]:
        reply = await scene.send(chat("hello", model=model))
        return reply.status, reply.replica if reply.status == 200 else reply.error()["code"]

    assert await result_of("law") == (404, "model_not_found")
    document = {"lora_name": "law", "lora_path": "/adapters/law"}
    async with scene.session.post(f"http://{first}/v1/load_lora_adapter", json=document) as done:
        assert done.status == 200

    async def is_served() -> bool:
        return (await result_of("law"))[0] == 200

    await until(is_served, PATIENCE, "the adapter to be served")
    assert {await result_of("law") for _ in range(5)} == {(200, first)}
    assert (await scene.sidecar.state())[MODEL]["adapters"] == ["law", "sql"]

    async with scene.session.post(f"http://{first}/v1/unload_lora_adapter", json=document) as done:
        assert done.status == 200

    async def is_unknown() -> bool:
        return await result_of("law") == (404, "model_not_found")

    await until(is_unknown, PATIENCE, "the adapter to be unknown")
    assert (await result_of("sql"))[0] == 200


async def test_frozen_replicas_have_stale_signals_and_do_not_block_decisions(
    launch: Launch,
) -> None:
    scene = await launch(Options(strategy="LeastQueue", replica_arguments=QUICK))
    await signals_are_known(scene)

    async def ages() -> list[float]:
        return [one["signals"]["age_seconds"] for one in (await endpoints(scene)).values()]

    async def are_old() -> bool:
        return min(await ages()) > 2

    async def are_new() -> bool:
        return max(await ages()) < 1

    async def timeouts_are_counted() -> bool:
        return any('result="timeout"' in line for line in await readings(scene))

    scene.replicas.signal(signal.SIGSTOP)
    await until(are_old, PATIENCE, "the signals to grow old")
    await until(timeouts_are_counted, PATIENCE, "a reading to time out")
    # The sidecar still decides; the chosen replicas respond only after SIGCONT.
    waiting = [asyncio.create_task(scene.send(chat(f"user {i}"))) for i in range(6)]

    async def are_decided() -> bool:
        return sum((await scene.sidecar.inflight()).values()) == len(waiting)

    await until(are_decided, PATIENCE, "six decisions")
    assert {one["inflight"] for one in (await endpoints(scene)).values()} == {2}
    scene.replicas.signal(signal.SIGCONT)
    assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
    await until(are_new, PATIENCE, "new signals")
