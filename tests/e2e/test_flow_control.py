"""With `flowControl`, requests wait in the sidecar while no endpoint has room."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.e2e.scene import (
    CONFIGS,
    MODEL,
    HttpResponse,
    Json,
    Launch,
    Options,
    Scene,
    chat,
    show_bodies,
)
from tests.e2e.test_endpoint_picker import assert_whole, sized
from tests.extent import PATIENCE

REAL_TIME = ("--time-scale", "1")
UNLIMITED = ("--max-model-len", "40000000", "--kv-tokens", "40000000")
CLOSED = "fail-closed.yaml"
MESSAGE_TIMEOUT = 2.0
"""Seconds that Envoy waits for a reply, in the shipped configurations."""

LONG = 10_000
"""Tokens of a response that lasts until its stream is closed."""


def one_each(**others: Any) -> Options:
    """Return options with room for one request on each of two replicas."""
    flow = {"maxInflight": 1, **others.pop("flow", {})}
    return Options(
        **{"replicas": 2, "flow_control": flow, "replica_arguments": REAL_TIME, **others}
    )


@asynccontextmanager
async def busy(scene: Scene, streams: int = 2) -> AsyncIterator[None]:
    """Hold all room with streams that end with the block."""
    async with AsyncExitStack() as held:
        for number in range(streams):
            body = chat(f"long {number}", tokens=LONG, ignore_eos=True)
            await held.enter_async_context(scene.stream(body))
        await scene.agree_on_inflight(streams)
        yield


def several(
    scene: Scene, bodies: Sequence[Json], headers: dict[str, str] | None = None
) -> list[asyncio.Task[HttpResponse]]:
    return [asyncio.create_task(scene.send(body, headers=headers)) for body in bodies]


def questions(number: int) -> list[Json]:
    return [chat(f"question {one}", tokens=1) for one in range(number)]


@pytest.mark.parametrize("config", CONFIGS)
async def test_requests_wait_and_are_served_when_there_is_room(
    launch: Launch, config: str, every_envoy: str
) -> None:
    scene = await launch(one_each(config=config))
    async with busy(scene):
        waiting = several(scene, questions(10))
        await scene.agree_on_queue(10)
        held = await scene.replicas.requests()
        assert all(one["in_flight"] == 1 for one in held.values())
    assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
    await scene.agree_on_queue(0)
    lines = await scene.access_log(12)
    decisions = [line.get("decision") or line for line in lines]
    if config == "envoy.yaml":
        assert sorted(one["queued_ms"] > 0 for one in decisions) == [False] * 2 + [True] * 10
        assert {one["priority"] for one in decisions} == {0}
    assert await scene.metric("extproc_queue_dispatched_total", model=MODEL, waited="true") == 10


@pytest.mark.parametrize(
    ("transport", "config"), [("fast", "envoy.yaml"), ("grpcio", "envoy.yaml"), ("fast", CLOSED)]
)
async def test_bodies_wait_longer_than_envoys_timeout_and_arrive_whole(
    launch: Launch, transport: str, config: str, every_envoy: str
) -> None:
    arguments = ("--transport", transport)
    options = one_each(
        config=config, sidecar_arguments=arguments, replica_arguments=(*REAL_TIME, *UNLIMITED)
    )
    scene = await launch(options)
    async with busy(scene):
        sizes = (10, 60_000, 70_000, 1_000_000, 3_000_000, 9_000_000)
        sent = [sized(size) for size in sizes]
        waiting = [asyncio.create_task(scene.send(body, path="/v1/embeddings")) for body in sent]
        await scene.agree_on_queue(len(sizes))
        await asyncio.sleep(MESSAGE_TIMEOUT + 0.5)
        await scene.agree_on_queue(len(sizes))
    for body, reply in zip(sent, await asyncio.gather(*waiting), strict=True):
        assert_whole(reply, body)


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
async def test_requests_wait_in_full_duplex_mode(
    launch: Launch, transport: str, every_envoy: str
) -> None:
    arguments = ("--transport", transport)
    scene = await launch(one_each(config="endpoint-picker.yaml", sidecar_arguments=arguments))
    async with busy(scene):
        sent = [sized(size) for size in (10, 60_000, 200_000, 3_000_000)]
        waiting = [asyncio.create_task(scene.send(one, path="/v1/embeddings")) for one in sent]
        await scene.agree_on_queue(len(sent))
    for body, reply in zip(sent, await asyncio.gather(*waiting), strict=True):
        assert_whole(reply, body)


async def test_a_body_too_large_to_hold_does_not_wait_in_full_duplex_mode(launch: Launch) -> None:
    scene = await launch(one_each(config="endpoint-picker.yaml"))
    async with busy(scene):
        sent = sized(6_000_000)
        assert_whole(await scene.send(sent, path="/v1/embeddings"), sent)


async def test_requests_without_a_body_wait_too(launch: Launch) -> None:
    scene = await launch(one_each())
    async with busy(scene):
        waiting = asyncio.create_task(scene.send(b"", path="/v1/responses/resp_1", method="GET"))
        await scene.agree_on_queue(1)
    assert (await waiting).status == 404, "the replica's own response"
    (line,) = [one for one in await scene.access_log(3) if one["path"].endswith("resp_1")]
    assert line["queued_ms"] > 0


async def test_a_client_that_leaves_is_removed_from_the_queue_at_once(launch: Launch) -> None:
    scene = await launch(one_each())
    async with busy(scene):
        waiting = several(scene, questions(3))
        await scene.agree_on_queue(3)
        waiting[1].cancel()
        await scene.agree_on_queue(2)
    replies = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(reply, "status", None) for reply in replies] == [200, None, 200]
    served = await scene.replicas.requests()
    assert sum(one["total"] for one in served.values()) == 4


def _note(order: list[int], number: int, _: object) -> None:
    order.append(number)


async def served_order(scene: Scene, waiting: list[asyncio.Task[HttpResponse]]) -> list[int]:
    """Return the requests' numbers in the order in which they were served."""
    order: list[int] = []
    for number, task in enumerate(waiting):
        task.add_done_callback(partial(_note, order, number))
    await asyncio.gather(*waiting)
    await asyncio.sleep(0)
    return order


async def queue_in_order(
    scene: Scene, requests: Sequence[tuple[Json, dict[str, str]]]
) -> list[asyncio.Task[HttpResponse]]:
    """Send requests so that they wait in this order."""
    waiting: list[asyncio.Task[HttpResponse]] = []
    for number, (body, headers) in enumerate(requests, 1):
        waiting += several(scene, [body], headers)
        await scene.agree_on_queue(number)
    return waiting


OBJECTIVE = "x-gateway-inference-objective"
TENANT = "x-gateway-inference-fairness-id"


async def test_classes_with_a_higher_priority_are_dispatched_first(launch: Launch) -> None:
    classes = [{"name": "batch", "priority": -1}, {"name": "chat", "priority": 5}]
    scene = await launch(one_each(replicas=1, flow={"classes": classes}))
    async with busy(scene, 1):
        objectives = ["batch", "unknown", "chat", "batch", "chat"]
        requests = [
            (chat(f"{n}", tokens=1), {OBJECTIVE: name}) for n, name in enumerate(objectives)
        ]
        waiting = await queue_in_order(scene, requests)
        queue = (await scene.sidecar.state())[MODEL]["queue"]
        batch = queue["classes"]["batch"]
        assert batch.pop("oldest_seconds") > 0
        assert batch == {"priority": -1, "requests": 2, "tenants": 1}
    assert await served_order(scene, waiting) == [2, 4, 1, 0, 3]


async def test_tenants_share_the_endpoints_by_tokens(launch: Launch) -> None:
    scene = await launch(one_each(replicas=1, strategy="LeastLoad"))
    async with busy(scene, 1):
        tenants = ["loud"] * 6 + ["quiet"] * 2
        requests = [(chat(f"{n}", tokens=1), {TENANT: name}) for n, name in enumerate(tenants)]
        waiting = await queue_in_order(scene, requests)
    order = await served_order(scene, waiting)
    assert max(order.index(6), order.index(7)) <= 4
    assert [one for one in order if one < 6] == list(range(6)), "first come, first served"
    hashes = {line["tenant_hash"] for line in await scene.access_log(9)}
    assert len(hashes) == 3
    assert "loud" not in str(hashes)


async def test_a_full_queue_refuses_with_an_estimate(launch: Launch) -> None:
    scene = await launch(one_each(flow={"maxQueued": 3}))
    async with busy(scene):
        waiting = several(scene, questions(3))
        await scene.agree_on_queue(3)
        refused = await scene.send(chat("one too many"))
        assert (refused.status, refused.error()["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        anthropic = await scene.send(chat("hello", tokens=1), path="/v1/messages")
        assert anthropic.json()["error"]["type"] == "rate_limit_error"
    assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
    assert await scene.metric("extproc_queue_refused_total", model=MODEL, reason="queue_full") == 2
    assert (
        await scene.metric(
            "extproc_requests_total", model=MODEL, strategy="none", outcome="queue_full"
        )
        == 2
    )


async def test_a_negative_priority_makes_space_for_a_better_one(launch: Launch) -> None:
    classes = [{"name": "batch", "priority": -1}]
    scene = await launch(one_each(flow={"maxQueued": 2, "classes": classes}))
    async with busy(scene):
        batch = several(scene, questions(2), {OBJECTIVE: "batch"})
        await scene.agree_on_queue(2)
        better = several(scene, [chat("better", tokens=1)])
        done, _ = await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED)
        (evicted,) = [task.result() for task in done]
        assert (evicted.status, evicted.error()["code"]) == (429, "queue_full")
    statuses = Counter(reply.status for reply in await asyncio.gather(*batch, *better))
    assert statuses == {200: 2, 429: 1}
    assert await scene.metric("extproc_queue_refused_total", model=MODEL, reason="evicted") == 1


async def test_a_request_that_waits_too_long_is_refused(launch: Launch) -> None:
    scene = await launch(one_each(flow={"maxWaitSeconds": 0.5}))
    async with busy(scene):
        refused = await scene.send(chat("hello"))
        assert (refused.status, refused.error()["code"]) == (503, "queue_timeout")
        assert int(refused.headers["retry-after"]) >= 1


async def test_the_clients_own_timeout_limits_the_wait(launch: Launch) -> None:
    scene = await launch(one_each())
    async with busy(scene):
        refused = await scene.send(chat("hello"), headers={"x-request-timeout-ms": "300"})
        assert (refused.status, refused.error()["code"]) == (503, "queue_timeout")
        at_once = await scene.send(chat("hello"), headers={"x-request-timeout-ms": "0"})
        assert (at_once.status, at_once.error()["code"]) == (503, "queue_timeout")
    assert await scene.metric("extproc_queue_refused_total", model=MODEL, reason="deadline") == 1


async def test_requests_wait_until_the_first_endpoint_is_ready(launch: Launch) -> None:
    options = one_each(flow={"maxInflight": 100})
    scene = await launch(options)
    assert isinstance(scene.sidecar, FileSidecar)
    scene.sidecar.write_models(options.models([]))

    async def empty() -> bool:
        return not (await scene.sidecar.state())[MODEL]["endpoints"]

    await until(empty, PATIENCE, "a model without endpoints")
    waiting = several(scene, questions(20))
    await scene.agree_on_queue(20)
    assert await scene.metric("extproc_queue_requests", model=MODEL) == 20
    assert await scene.metric("extproc_saturation", model=MODEL) == 20
    scene.sidecar.write_models(options.models(scene.replicas.addresses))
    assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}


@pytest.mark.parametrize("flow", [{"maxInflight": 20}, None])
async def test_a_reload_takes_effect_for_requests_that_wait(
    launch: Launch, flow: Json | None
) -> None:
    scene = await launch(one_each())
    assert isinstance(scene.sidecar, FileSidecar)
    async with busy(scene):
        waiting = several(scene, questions(10))
        await scene.agree_on_queue(10)
        changed = Options(flow_control=flow).models(scene.replicas.addresses)
        scene.sidecar.write_models(changed)
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}


async def test_a_model_that_is_removed_refuses_what_waits(launch: Launch) -> None:
    scene = await launch(one_each())
    assert isinstance(scene.sidecar, FileSidecar)
    async with busy(scene):
        waiting = several(scene, questions(3))
        await scene.agree_on_queue(3)
        other = Options().models(scene.replicas.addresses)
        other["models"][0]["name"] = "other"
        scene.sidecar.write_models(other)
        replies = await asyncio.gather(*waiting)
        assert {(one.status, one.error()["code"]) for one in replies} == {(404, "model_not_found")}


@pytest.mark.parametrize("becomes", ["alias", "split"])
async def test_requests_that_wait_follow_their_name_to_another_model(
    launch: Launch, becomes: str
) -> None:
    scene = await launch(one_each())
    assert isinstance(scene.sidecar, FileSidecar)
    async with busy(scene):
        waiting = several(scene, questions(6))
        await scene.agree_on_queue(6)
        changed = one_each().models(scene.replicas.addresses)
        (model,) = changed["models"]
        model["name"] = "new"
        if becomes == "alias":
            model["aliases"] = [MODEL]
        else:
            split = {"targets": [{"model": "new", "weight": 1}]}
            changed["models"].append({"name": MODEL, "split": split})
        scene.sidecar.write_models(changed)

        async def moved() -> bool:
            renamed = (await scene.sidecar.state()).get("new")
            return renamed is not None and renamed["queue"]["requests"] == 6

        await until(moved, PATIENCE, "the requests to wait for the other model")
    replies = await asyncio.gather(*waiting)
    assert {reply.status for reply in replies} == {200}
    assert {reply.json()["model"] for reply in replies} == {"new"}, "also in the bodies"


async def test_a_drain_dispatches_or_refuses_what_waits(launch: Launch) -> None:
    scene = await launch(one_each(sidecar_arguments=("--grace", "4")))
    async with busy(scene):
        waiting = several(scene, questions(5))
        await scene.agree_on_queue(5)
        scene.sidecar.signal(signal.SIGTERM)
        replies = await asyncio.gather(*waiting)
    assert {(one.status, one.error()["code"]) for one in replies} == {(503, "queue_timeout")}
    assert await scene.sidecar.wait() == 0


@pytest.mark.parametrize(
    ("config", "mode", "status"),
    [
        ("envoy.yaml", "", 200),
        ("metadata.yaml", "", 200),
        ("fallback-override-host.yaml", "", 200),
        ("envoy.yaml", "BUFFERED_PARTIAL", 200),
        (CLOSED, "", 503),
        ("endpoint-picker.yaml", "", 503),
    ],
)
async def test_a_killed_sidecar_loses_no_request_that_waits_if_envoy_has_a_fallback(
    launch: Launch, config: str, mode: str, status: int
) -> None:
    def change(one: Json) -> None:
        if mode:
            show_bodies(one, mode)

    scene = await launch(one_each(config=config, change_config=change))
    async with busy(scene):
        waiting = several(scene, questions(100))
        await scene.agree_on_queue(100)
        await scene.sidecar.kill()
        replies = await asyncio.gather(*waiting)
    assert Counter(reply.status for reply in replies) == {status: 100}


async def test_limits_are_learned_from_the_engines(launch: Launch) -> None:
    """Each engine can run 4 requests; the others wait in the sidecar."""
    arguments = ("--time-scale", "1", "--max-num-seqs", "4")
    scene = await launch(Options(replicas=2, flow_control={}, replica_arguments=arguments))
    async with AsyncExitStack() as held:
        for number in range(24):
            body = chat(f"long {number}", tokens=LONG, ignore_eos=True)
            task = asyncio.create_task(held.enter_async_context(scene.stream(body)))
            held.callback(task.cancel)

        async def learned() -> bool:
            model = (await scene.sidecar.state())[MODEL]
            return all(one["limit"] <= 8 for one in model["endpoints"])

        await until(learned, PATIENCE, "the limits")
