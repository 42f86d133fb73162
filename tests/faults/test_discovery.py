"""Endpoints that all terminate at once, and addresses that must not receive requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from extproc.lab.api_server.builders import config_map, endpoint_slice
from extproc.lab.stack.processes import until
from tests.e2e.cluster_scene import (
    NAMESPACE,
    READY,
    SERVICE,
    STARTING,
    TERMINATING,
    ClusterOptions,
    ClusterScene,
    Deploy,
)
from tests.e2e.scene import HttpResponse, Json, chat
from tests.extent import PATIENCE, extent, limit
from tests.faults.canary import Canary
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, WHOLE, streaming

REFUSALS = extent(20, full=100)
REFUSAL_SECONDS = limit(0.05)
SCRAPED = {"/metrics", "/v1/models"}


async def test_all_endpoints_terminating(deploy: Deploy, report: Report) -> None:
    """Endpoints that still serve are used; after that, 503 in OpenAI's shape within 50 ms."""
    scene = await deploy(ClusterOptions(replicas=2, replica_arguments=PACE))
    report.tried(f"both pods terminating under {CLIENTS} streams, then none")
    async with streaming(scene) as streams:
        await scene.api.apply(scene.pod(0, TERMINATING), scene.pod(1, STARTING))
        await scene.routes_to(0)
        await asyncio.sleep(1)
        assert (await scene.send(chat("hello"))).replica == scene.replicas.addresses[0]
    await scene.remove(0)
    await scene.routes_to()
    took = sorted([await seconds_to_refusal(scene) for _ in range(REFUSALS)])
    slow = REFUSALS * 95 // 100 - 1
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {streams.whole} streams; then {REFUSALS} refusals, 95 % within "
        f"{took[slow] * 1000:.1f} ms",
    )
    assert streams.outcomes.keys() == {"whole"}
    assert took[slow] < REFUSAL_SECONDS
    await scene.api.apply(scene.pod(1))
    await scene.routes_to(1)
    assert (await scene.send(chat("hello"))).status == 200


async def seconds_to_refusal(scene: ClusterScene) -> float:
    """Return the seconds to a refusal."""
    began = time.monotonic()
    reply: HttpResponse = await scene.send(chat("hello"))
    took = time.monotonic() - began
    assert (reply.status, reply.error()["code"]) == (503, "no_endpoints")
    assert reply.headers["retry-after"] == "2"
    return took


POISON = {
    "169.254.169.254": "IPv4",
    "224.0.0.1": "IPv4",
    "0.0.0.0": "IPv4",
    "127.0.0.1": "IPv4",
    "fe80::1": "IPv6",
    "ff02::1": "IPv6",
}
REFUSED = {"link_local": 2, "multicast": 2, "unspecified": 1, "api_server": 1, "undeclared_port": 1}


async def test_poisoned_discovery(deploy: Deploy, report: Report) -> None:
    """API server, link-local and multicast addresses: never routed to or scraped, counted once."""
    scene = await deploy(ClusterOptions(replicas=1, strategy="LeastQueue", replica_arguments=PACE))
    report.tried(
        f"slices with {', '.join(POISON)} and a port that the document does not name, listed "
        f"twice, under {CLIENTS} streams"
    )
    async with Canary().listening() as canary:
        async with streaming(scene) as streams:
            await poison(scene, canary)
            # Each refused address is counted once, although other endpoints change.
            await scene.api.apply(scene.pod(0, TERMINATING))
            await scene.api.apply(scene.pod(0))
            await until(lambda: _all_counted(scene), PATIENCE, "all poison to be counted")
            assert await scene.ready() == {scene.replicas.addresses[0]}
            for i in range(10):
                reply = await scene.send(chat(f"hello {i}"))
                assert reply.replica == scene.replicas.addresses[0]
            await force_new_list(scene)
            await asyncio.sleep(1)  # two rounds of scrapes
            assert await _all_counted(scene)
        scraped = [one for one in await scene.api.requests() if one["path"] in SCRAPED]
        report.lost(
            failed=streams.failed,
            cut=streams.cut,
            canary_connections=canary.connections,
            scrapes_of_the_api_server=len(scraped),
            what=f"of {streams.whole} streams",
        )
        assert canary.connections == 0
        assert scraped == []
    assert streams.outcomes.keys() == {WHOLE}
    for address in POISON:
        assert scene.sidecar.error_output().count(f"address={address} ") == 1


async def poison(scene: ClusterScene, canary: Canary) -> None:
    """Add slices of the Service with addresses that must not receive requests."""
    api_port = int(scene.api.url.rpartition(":")[2])
    ports = {"169.254.169.254": 80, "127.0.0.1": api_port}
    for number, (address, family) in enumerate(POISON.items()):
        endpoints = [(address, f"evil-{number}", READY)]
        await scene.api.apply(
            endpoint_slice(
                *(SERVICE, NAMESPACE, f"poison-{number}", endpoints),
                port=ports.get(address, 8000),
                address_type=family,
            )
        )
    await scene.api.apply(
        endpoint_slice(
            *(SERVICE, NAMESPACE, "other-port", [("127.0.0.1", "p", READY)]),
            port=int(canary.address.rpartition(":")[2]),
            port_name="admin",
        )
    )


async def force_new_list(scene: ClusterScene) -> None:
    """Break off the watch and expire its version, so the sidecar lists all slices again."""

    async def lists() -> float:
        return await scene.metric(
            "extproc_discovery_lists_total", resource="endpointslices", result="ok"
        )

    before = await lists()
    await scene.api.apply(config_map(NAMESPACE, "unrelated", {}))
    await scene.api.compact()
    await scene.api.drop_watches(abort=True)

    async def has_more() -> bool:
        return await lists() > before

    await until(has_more, PATIENCE, "the slices to be listed again")


async def _all_counted(scene: ClusterScene) -> bool:
    source = f"service {NAMESPACE}/{SERVICE}"
    name = "extproc_endpoints_refused_total"
    return {
        reason: await scene.metric(name, reason=reason, source=source) for reason in REFUSED
    } == REFUSED


BIG = "big"
ENDPOINTS = extent(200, full=1_000)
ROLLED = extent(60, full=600)
"""Changes of an endpoint, one after the other."""
PAUSE = 0.02
"""Without it, the test and the API server would use both cores, and the delays would be theirs."""
SLICE = 100


async def test_rolling_endpoints_of_another_model(deploy: Deploy, report: Report) -> None:
    """Each change builds a ring of that model, and requests to other models hardly notice."""
    service = {"service": {"namespace": NAMESPACE, "name": BIG, "port": "http"}}
    scene = await deploy(ClusterOptions(replicas=1, more_models=[{"name": BIG, **service}]))
    report.tried(f"{ROLLED} changes of one of {ENDPOINTS:,} endpoints of another model")
    for first in range(0, ENDPOINTS, SLICE):
        await scene.api.apply(big_slice(first))

    async def are_known() -> bool:
        return len(await scene.ready(BIG)) == ENDPOINTS

    await until(are_known, PATIENCE, "all endpoints")
    quiet = await refusals_until(scene, asyncio.create_task(asyncio.sleep(extent(1, full=10))))
    rolling = await refusals_until(scene, asyncio.create_task(roll(scene)))
    await until(are_known, PATIENCE, "all endpoints again")
    before, during = (percentile(took, 99) for took in (quiet, rolling))
    report.lost(
        failed=0,
        what=f"of {len(rolling)} requests to another model; 99 % took at most {during * 1e3:.0f} "
        f"ms, and {before * 1e3:.0f} ms before the changes",
    )
    assert during < max(2 * before, limit(0.03))


async def test_new_model_of_many_endpoints(deploy: Deploy, report: Report) -> None:
    """Its ring is built aside, and requests to other models hardly notice."""
    service = {"service": {"namespace": NAMESPACE, "name": BIG, "port": "http"}}
    options = ClusterOptions(replicas=1)
    scene = await deploy(options)
    report.tried(f"a new model with {ENDPOINTS:,} endpoints; all of them leave, and come again")
    slices = [big_slice(first) for first in range(0, ENDPOINTS, SLICE)]

    async def are(count: int) -> None:
        async def known() -> bool:
            return len(await scene.ready(BIG)) == count

        await until(known, PATIENCE, f"{count} endpoints")

    async def come_and_go() -> None:
        await scene.configure(replace(options, more_models=[{"name": BIG, **service}]).document())
        await are(ENDPOINTS)
        for one in slices:
            await scene.api.delete("EndpointSlice", NAMESPACE, one["metadata"]["name"])
        await are(0)
        await scene.api.apply(*slices)
        await are(ENDPOINTS)

    await scene.api.apply(*slices)
    quiet = await refusals_until(scene, asyncio.create_task(asyncio.sleep(extent(1, full=10))))
    busy = await refusals_until(scene, asyncio.create_task(come_and_go()))
    before, during = (percentile(took, 99) for took in (quiet, busy))
    report.lost(
        failed=0,
        what=f"of {len(busy)} requests to another model; 99 % took at most {during * 1e3:.0f} ms, "
        f"and {before * 1e3:.0f} ms before; the slowest {max(busy) * 1e3:.0f} ms",
    )
    assert during < max(2 * before, limit(0.03))


def big_slice(first: int, without: int | None = None) -> Json:
    """Return the slice with this first endpoint; one of its endpoints may be unready."""
    numbers = range(first, min(first + SLICE, ENDPOINTS))
    endpoints = [
        (f"10.1.{n // 250}.{n % 250 + 1}", f"big-{n}", STARTING if n == without else READY)
        for n in numbers
    ]
    return endpoint_slice(BIG, NAMESPACE, f"big-{first}", endpoints)


async def roll(scene: ClusterScene) -> None:
    """Let one endpoint after the other become unready, and ready again."""
    for change in range(ROLLED // 2):
        number = change * 7 % ENDPOINTS
        first = number // SLICE * SLICE
        for without in (number, None):
            await scene.api.apply(big_slice(first, without))
            await asyncio.sleep(PAUSE)


async def refusals_until(scene: ClusterScene, end: asyncio.Task[None]) -> list[float]:
    """Return the seconds that refusals of an unknown model take, one after the other."""
    took = []
    while not end.done():
        began = time.monotonic()
        reply: HttpResponse = await scene.send({**chat("hello"), "model": "unknown"})
        took.append(time.monotonic() - began)
        assert reply.status == 404
        await asyncio.sleep(0.005)
    await end
    return took


def percentile(took: list[float], percent: int) -> float:
    """Return a percentile of these seconds."""
    return sorted(took)[min(len(took) - 1, len(took) * percent // 100)]
