"""The sidecar reads every signal of real engines."""

from __future__ import annotations

from typing import Any

from extproc.adapters.vllm.exposition import read_report
from extproc.core.fleet.engine_times import EngineTimes
from extproc.core.fleet.report import Report
from extproc.lab.real_vllm.engines import BLOCK_SIZE, BLOCKS, MAX_LORAS
from extproc.lab.real_vllm.metrics import Metrics
from extproc.lab.stack.processes import until
from tests.e2e.scene import MODEL, Json, chat, processing_modes
from tests.e2e_vllm.scene import (
    AGREEMENT_SECONDS,
    ENDLESS,
    RESIDENT,
    STREAMS,
    Launch,
    Options,
    RecordFigure,
    VllmScene,
    abort,
)

READING = Options(strategy="LowLatency", adapters=[RESIDENT])
FIXED = {"block_size": BLOCK_SIZE, "blocks": BLOCKS, "max_loras": MAX_LORAS}


async def signals(scene: VllmScene) -> dict[str, Json]:
    """Wait until the sidecar has signals of every endpoint, and return them by address."""

    async def read() -> bool:
        endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
        return all(endpoint["signals"] for endpoint in endpoints)

    await until(read, AGREEMENT_SECONDS, "signals of every endpoint")
    endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
    return {endpoint["address"]: endpoint["signals"] for endpoint in endpoints}


def counted(metrics: Metrics) -> dict[str, Any]:
    """Return the metrics of an engine under the names of the sidecar's signals."""
    loras = metrics.labels("vllm:lora_requests_info")
    return {
        "running": metrics.value("vllm:num_requests_running"),
        "waiting": metrics.value("vllm:num_requests_waiting"),
        "running_adapters": _names(loras.get("running_lora_adapters", "")),
        "waiting_adapters": _names(loras.get("waiting_lora_adapters", "")),
    }


def _names(joined: str) -> list[str]:
    return sorted(name for name in joined.split(",") if name)


def held(known: Json) -> float:
    """Return the number of requests in an engine."""
    total: float = known["running"] + known["waiting"]
    return total


async def agree(scene: VllmScene, requests: int) -> dict[str, Json]:
    """Wait until sidecar and engines report the same state, with `requests` in total."""

    async def same() -> bool:
        ours, theirs = await signals(scene), await scene.engines.metrics()
        return sum(map(held, ours.values())) == requests and all(
            ours[address].items() >= counted(metrics).items() for address, metrics in theirs.items()
        )

    try:
        await until(same, AGREEMENT_SECONDS, f"signals of {requests} requests")
    except TimeoutError as error:
        theirs = {a: counted(metrics) for a, metrics in (await scene.engines.metrics()).items()}
        raise AssertionError(f"{error}: {await signals(scene)}, engines {theirs}") from None
    return await signals(scene)


async def test_scraper_reads_every_signal(launch: Launch, record_figure: RecordFigure) -> None:
    scene = await launch(READING)
    await agree(scene, requests=0)
    names = (MODEL, RESIDENT)
    streams = [
        scene.begin(chat(f"user {i}", model=names[i % 2], tokens=ENDLESS)) for i in range(STREAMS)
    ]
    busy = await agree(scene, requests=STREAMS)
    for known in busy.values():
        shown = ("running", "waiting", "kv_usage", "running_adapters", "age_seconds")
        record_figure("signals of an engine", ", ".join(f"{name} {known[name]}" for name in shown))
        assert known.items() >= FIXED.items()
        assert known["kv_usage"] > 0
    assert any(RESIDENT in known["running_adapters"] for known in busy.values())
    await abort(streams)
    for known in (await agree(scene, requests=0)).values():
        assert known["kv_usage"] == 0
    await scene.agree_on_inflight(0)


async def test_engines_count_their_steps_and_the_times_of_prompts(
    launch: Launch, record_figure: RecordFigure
) -> None:
    scene = await launch(READING)
    times = EngineTimes()
    for number in range(12):
        user = f"{number}: " + "tell me more " * 40
        assert (await scene.send(chat(user, tokens=20))).status == 200
        await agree(scene, requests=0)
        for address, metrics in (await scene.engines.metrics()).items():
            times.read(address, read_report(metrics.text.encode()), None, now=0.0)
    known = times.of(scene.engines.addresses)
    record_figure("seconds of a step, and of a prompt token", f"{list(known.values())}")
    assert known
    for step, token in known.values():
        assert 0 < token < step < 1


async def test_engines_count_no_cached_tokens_in_their_steps(launch: Launch) -> None:
    """So the times to first token belong to these tokens."""
    scene = await launch(READING)

    async def reports() -> list[Report]:
        metrics = await scene.engines.metrics()
        return [read_report(metrics[one].text.encode()) for one in scene.engines.addresses]

    await agree(scene, requests=0)
    before = await reports()
    for _ in range(6):
        assert (await scene.send(chat("tell me more " * 40, tokens=5))).status == 200
    await agree(scene, requests=0)
    after = await reports()
    cached = [
        (now.cached_tokens or 0) - (was.cached_tokens or 0)
        for was, now in zip(before, after, strict=True)
    ]
    assert max(cached) > 0
    for was, now in zip(before, after, strict=True):
        assert was.steps is not None
        assert now.steps is not None
        assert was.computed_tokens is not None
        assert now.computed_tokens is not None
        # Not the sums since the start: prompts that were aborted count only as computed.
        new = now.steps.computed - was.steps.computed
        assert new == now.computed_tokens - was.computed_tokens


async def test_load_report_is_newer_than_the_last_reading(
    launch: Launch, record_figure: RecordFigure
) -> None:
    def with_response_headers(config: Json) -> None:
        for modes in processing_modes(config):
            modes["response_header_mode"] = "SEND"

    rarely = {"intervalSeconds": 60, "idleIntervalSeconds": 60, "staleAfterSeconds": 120}
    scene = await launch(
        Options(strategy="LowLatency", signals=rarely, change_config=with_response_headers)
    )
    await signals(scene)

    async def ages() -> list[float]:
        return [known["age_seconds"] for known in (await signals(scene)).values()]

    async def all_are_old() -> bool:
        return min(await ages()) > 3

    await until(all_are_old, AGREEMENT_SECONDS, "the readings to grow old")
    before = await ages()
    # The first response shows the sidecar that Envoy forwards responses. It then requests reports.
    for _ in range(2):
        reply = await scene.send(chat("hello"))
        assert reply.status == 200
        assert "endpoint-load-metrics" not in reply.headers
    after = await ages()
    record_figure("seconds since the last reading", f"{before}, after a response of one {after}")
    assert min(after) < min(before)
    assert max(after) >= min(before)
