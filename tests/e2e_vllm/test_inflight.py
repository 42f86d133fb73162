"""The sidecar's in-flight counts equal the running and waiting requests of the engines."""

from __future__ import annotations

from tests.e2e.scene import chat
from tests.e2e_vllm.scene import ENDLESS, STREAMS, Launch, Options, RecordFigure, abort


async def test_counts_agree_when_half_of_the_clients_abort(
    launch: Launch, record_figure: RecordFigure
) -> None:
    scene = await launch(Options(strategy="RoundRobin"))
    await scene.agree_on_inflight(0)
    streams = [scene.begin(chat(f"user {i}", tokens=ENDLESS)) for i in range(STREAMS)]
    await scene.agree_on_inflight(STREAMS)
    held = await scene.engines.inflight()
    await abort(streams[: STREAMS // 2])
    await scene.agree_on_inflight(STREAMS - STREAMS // 2)
    left = await scene.engines.inflight()
    await abort(streams)
    await scene.agree_on_inflight(0)
    record_figure(
        "in flight, counted alike", f"{[*held.values()]}, half aborted {[*left.values()]}, then 0"
    )
