"""Faults while requests wait for room: none is lost, and each gets one complete response."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import MODEL, Json, Launch, Options, Scene, chat
from tests.e2e.test_endpoint_picker import sized
from tests.e2e.test_flow_control import busy, one_each, questions, several
from tests.extent import PATIENCE, extent
from tests.faults.report import Report
from tests.faults.streams import PACE

HELD = extent(200, full=500)
CLIENTS = extent(60, full=200)
TURNS = extent(3, full=10)
CHANGES = 100
OBJECTIVES = ("chat", "batch", "")
CLASSES = [{"name": "chat", "priority": 1}, {"name": "batch", "priority": -1}]


async def test_sidecar_sigkill_with_requests_held(launch: Launch, report: Report) -> None:
    """Envoy sends them to its fallback."""
    scene = await launch(one_each())
    report.tried(f"SIGKILL with {HELD} requests held")
    async with busy(scene):
        waiting = several(scene, questions(HELD))
        await scene.agree_on_queue(HELD)
        await scene.sidecar.kill()
        statuses = Counter(reply.status for reply in await asyncio.gather(*waiting))
    report.lost(f"of {HELD} requests", failed=HELD - statuses[200])
    assert statuses == {200: HELD}


@pytest.mark.full
async def test_sidecar_frozen_with_requests_held(launch: Launch, report: Report) -> None:
    """Envoy sends them to its fallback when their longest wait has passed."""
    scene = await launch(one_each(flow={"maxWaitSeconds": 2}))
    report.tried("SIGSTOP with 50 requests held, for at most 2 s")
    async with busy(scene):
        waiting = several(scene, questions(50))
        await scene.agree_on_queue(50)
        scene.sidecar.signal(signal.SIGSTOP)
        try:
            statuses = Counter(reply.status for reply in await asyncio.gather(*waiting))
        finally:
            scene.sidecar.signal(signal.SIGCONT)
    report.lost("of 50 requests", failed=50 - statuses[200])
    assert statuses == {200: 50}


async def test_crowd_with_flow_control(launch: Launch, report: Report) -> None:
    """Clients of all classes and tenants, through reloads: every body arrives whole."""
    flow = {"maxInflight": 2, "classes": CLASSES}
    scene = await launch(Options(replicas=3, flow_control=flow, replica_arguments=PACE))
    assert isinstance(scene.sidecar, FileSidecar)
    report.tried(f"{CLIENTS} clients, {TURNS} requests each, room for 6; reloads meanwhile")
    statuses: Counter[int] = Counter()
    whole = 0

    async def client(name: int) -> None:
        nonlocal whole
        headers = {
            "x-gateway-inference-objective": OBJECTIVES[name % 3],
            "x-gateway-inference-fairness-id": str(name % 5),
        }
        for turn in range(TURNS):
            body = sized(1000 * (1 + (name * turn) % 100))
            reply = await scene.send(body, path="/v1/embeddings", headers=headers)
            statuses[reply.status] += 1
            whole += reply.headers.get("x-stand-in-body-bytes") == str(len(body))

    clients = [asyncio.create_task(client(name)) for name in range(CLIENTS)]
    for limit in (3, 1, 2):
        changed = Options(flow_control={**flow, "maxInflight": limit})
        scene.sidecar.write_models(changed.models(scene.replicas.addresses))
        await asyncio.sleep(0.1)
    await asyncio.gather(*clients)
    report.lost(f"of {CLIENTS * TURNS} requests", failed=CLIENTS * TURNS - statuses[200])
    assert statuses == {200: CLIENTS * TURNS}
    assert whole == CLIENTS * TURNS
    await scene.agree_on_inflight(0)
    await scene.agree_on_queue(0)


async def test_replica_dies_with_requests_held(launch: Launch, report: Report) -> None:
    """Requests that wait go to the replicas that are left."""
    scene = await launch(one_each())
    assert isinstance(scene.sidecar, FileSidecar)
    report.tried("one of two replicas leaves with 20 requests held")
    async with busy(scene):
        waiting = several(scene, questions(20))
        await scene.agree_on_queue(20)
        left = scene.replicas.addresses[:1]
        document = one_each().models(left)
        scene.sidecar.write_models(document)
        await until(lambda: _has_one_endpoint(scene), PATIENCE, "one endpoint")
    replies = await asyncio.gather(*waiting)
    failed = sum(reply.status != 200 for reply in replies)
    report.lost("of 20 requests", failed=failed)
    assert not failed
    assert {reply.replica for reply in replies} == set(left)


def _any_document(rng: Random, addresses: Sequence[str]) -> Json:
    """Return a models document with some of the endpoints, and sometimes with less than before."""
    flow = {"maxInflight": rng.randint(1, 4), "classes": CLASSES}
    some = rng.sample(addresses, rng.randint(0, len(addresses)))
    document = Options(adapters=["sql"], flow_control=flow).models(some)
    (model,) = document["models"]
    change = rng.choice(["name", "adapters", "flowControl", "", "", ""])
    if change == "name":
        model["name"] = "other"
    elif change:
        del model[change]
    return document


@pytest.mark.full
async def test_models_and_endpoints_change_while_clients_leave(
    launch: Launch, report: Report
) -> None:
    """Models, adapters and endpoints come and go: no request is lost, and all counts are exact."""
    options = Options(
        replicas=4,
        adapters=["sql"],
        flow_control={"maxInflight": 2, "classes": CLASSES},
        replica_arguments=PACE,
    )
    scene = await launch(options)
    assert isinstance(scene.sidecar, FileSidecar)
    report.tried(f"{CLIENTS} clients, a fifth leaves; {CHANGES} other models documents meanwhile")
    rng, statuses, is_over = Random(5), Counter[int](), False

    async def client(name: int) -> None:
        while not is_over:
            headers = {
                "x-gateway-inference-objective": rng.choice(OBJECTIVES),
                "x-gateway-inference-fairness-id": str(name % 5),
            }
            body = chat(f"{rng.randrange(50)}", model=rng.choice([MODEL, "sql"]), tokens=10)
            sent = asyncio.create_task(scene.send(body, headers=headers))
            if rng.random() < 0.2:
                await asyncio.sleep(0.05)
                sent.cancel()
            with suppress(asyncio.CancelledError):
                reply = await sent
                statuses[reply.status] += 1
                if reply.status != 200:
                    await asyncio.sleep(0.1)

    clients = [asyncio.create_task(client(name)) for name in range(CLIENTS)]
    for _ in range(CHANGES):
        await asyncio.sleep(0.1)
        scene.sidecar.write_models(_any_document(rng, scene.replicas.addresses))
    scene.sidecar.write_models(options.models(scene.replicas.addresses))
    served = statuses[200]
    await until(lambda: statuses[200] >= served + CLIENTS, PATIENCE, "responses to all")
    is_over = True
    await asyncio.gather(*clients)
    failed = sum(count for status, count in statuses.items() if status not in (200, 404))
    report.lost(f"of {statuses.total()} requests", failed=failed)
    assert not failed, statuses
    await scene.agree_on_inflight(0)
    await scene.agree_on_queue(0)


async def _has_one_endpoint(scene: Scene) -> bool:
    (model,) = (await scene.sidecar.state()).values()
    return len([one for one in model["endpoints"] if one["state"] == "ready"]) == 1
