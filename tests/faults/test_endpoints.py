"""Endpoints that fail: each harms only its own streams."""

from __future__ import annotations

import asyncio
import time

import pytest

from extproc.lab.stack.processes import free_port, until
from tests.e2e.scene import CONFIGS, MODEL, Json, Launch, Options, Scene, chat
from tests.extent import FULL, PATIENCE, extent, limit
from tests.faults.engines import Engine
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, WHOLE, Streams, streaming

CROWD = extent(500, full=1_000)
FALLBACKS = [one for one in CONFIGS if one != "fail-closed.yaml"] if FULL else ["envoy.yaml"]
CORRECTION_SECONDS = limit(1)


def options_with(address: str, config: str = "envoy.yaml") -> Options:
    """Return a scene of three healthy replicas and this endpoint; each gets an equal share."""
    return Options(
        config=config,
        more_endpoints=[address],
        strategy="RoundRobin",
        replica_arguments=PACE,
    )


async def wait_for_count(scene: Scene, address: str, held: int) -> float:
    """Return the seconds until the sidecar counts so many requests there. Raises TimeoutError."""
    began = time.monotonic()

    async def agrees() -> bool:
        return (await scene.sidecar.inflight()).get(address, 0) == held

    await until(agrees, PATIENCE, f"{held} requests counted on {address}")
    return time.monotonic() - began


async def crowd(scene: Scene, streams: Streams, length: int) -> list[asyncio.Task[None]]:
    """Start clients that stream one response each, and wait until all of them are in flight."""
    bodies = (chat(f"user {i}", tokens=length) for i in range(CLIENTS))
    tasks = [asyncio.create_task(streams.one(scene, body)) for body in bodies]

    async def are_in_flight() -> bool:
        return sum((await scene.sidecar.inflight()).values()) == CLIENTS

    await until(are_in_flight, PATIENCE, f"{CLIENTS} streams")
    return tasks


async def all_at_once(scene: Scene) -> Streams:
    """Send a crowd's requests at once, and read each stream to its end."""
    streams = Streams()
    bodies = (chat(f"user {number}", tokens=10) for number in range(CROWD))
    await asyncio.gather(*(streams.one(scene, body) for body in bodies))
    return streams


async def report_losses(report: Report, scene: Scene, streams: Streams, dead: str) -> int:
    """Report the losses. Return the number of requests that the sidecar sent to `dead`."""
    requests = streams.outcomes.total()
    log = await scene.access_log(requests)
    # A sidecar on a busy machine may be too late for a decision: Envoy then uses its fallback.
    decisions = (line.get("decision") or line for line in log)
    sent_there: int = sum(decision.get("endpoint") == dead for decision in decisions)
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {requests:,} requests, {sent_there} of which were sent there",
    )
    return sent_there


async def test_endpoint_killed_mid_stream(launch: Launch, report: Report) -> None:
    """Only the dead endpoint's streams end, and in-flight counts are correct within 1 s."""
    async with Engine().serving() as victim:
        scene = await launch(options_with(victim.address))
        report.tried(f"one of 4 endpoints dies under {CLIENTS} streams")
        streams = Streams()
        tasks = await crowd(scene, streams, length=60)
        await until(lambda: victim.held == CLIENTS // 4, PATIENCE, "the victim to hold its share")
        held = victim.held
        victim.die()
        took = await wait_for_count(scene, victim.address, 0)
        await asyncio.gather(*tasks)
    report.lost(
        streams_of_its_own=held,
        of_others=CLIENTS - held - streams.whole,
        what=f"counts correct after {took:.2f} s",
    )
    # 502: the reset came while the sidecar processed the response headers.
    ended = streams.cut + streams.outcomes["status 502"]
    assert (streams.whole, ended) == (CLIENTS - held, held), streams.outcomes
    assert took < CORRECTION_SECONDS
    await scene.agree_on_inflight(0)


@pytest.mark.parametrize("config", ["fallback-override-host.yaml", "envoy.yaml"])
async def test_endpoint_refusing_with_fallback(launch: Launch, config: str, report: Report) -> None:
    """Requests sent to it go to their second candidate, none fails, and it is soon ejected."""
    dead = f"127.0.0.1:{free_port()}"
    scene = await launch(options_with(dead, config))
    report.tried(f"one of 4 endpoints refuses connections, under {CLIENTS} clients for 3 s")
    async with streaming(scene) as streams:
        await asyncio.sleep(3)
        endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
    states = {endpoint["address"]: endpoint["state"] for endpoint in endpoints}
    sent_there = await report_losses(report, scene, streams, dead)
    assert streams.outcomes.keys() == {WHOLE}
    assert states == {one: "ejected" if one == dead else "ready" for one in states}
    # It gets its share of the first burst, before its first failure, and nothing later.
    assert 0 < sent_there < CLIENTS // 4 + 10
    await scene.agree_on_inflight(0)


@pytest.mark.parametrize("config", ["fallback-override-host.yaml", "envoy.yaml"])
async def test_endpoint_refusing_a_crowd(launch: Launch, config: str, report: Report) -> None:
    """All requests sent to it go to their second candidate, however many are sent at once."""
    dead = f"127.0.0.1:{free_port()}"
    scene = await launch(options_with(dead, config))
    report.tried(f"one of 4 endpoints refuses connections, and {CROWD:,} requests come at once")
    streams = await all_at_once(scene)
    sent_there = await report_losses(report, scene, streams, dead)
    assert streams.outcomes.keys() == {WHOLE}
    assert sent_there > 100
    await scene.agree_on_inflight(0)


@pytest.mark.parametrize("config", FALLBACKS)
async def test_endpoint_refusing_the_fallback(launch: Launch, config: str, report: Report) -> None:
    """With the sidecar down too, a dead endpoint costs none of many concurrent requests."""
    dead = f"127.0.0.1:{free_port()}"

    def one_dead(config: Json) -> None:
        (fallback,) = (
            cluster["load_assignment"]
            for cluster in config["static_resources"]["clusters"]
            if cluster["name"] in ("fallback", "replicas")
        )
        (locality,) = fallback["endpoints"]
        host, _, port = dead.partition(":")
        address = {"socket_address": {"address": host, "port_value": int(port)}}
        locality["lb_endpoints"].append({"endpoint": {"address": address}})

    scene = await launch(Options(config=config, change_config=one_dead, replica_arguments=PACE))
    await scene.sidecar.kill()
    report.tried(
        f"no sidecar, one of 4 endpoints refuses connections, {CROWD:,} requests come at once"
    )
    streams = await all_at_once(scene)
    retried = (await scene.envoy.stats("cluster.(fallback|replicas).upstream_rq_retry$")).values()
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        what=f"of {CROWD:,} requests; {sum(retried):g} retries",
    )
    assert streams.outcomes.keys() == {WHOLE}
    assert sum(retried) > 0


async def test_endpoint_silent(launch: Launch, report: Report) -> None:
    """A silent endpoint holds its requests until their clients give up; counts stay correct."""
    async with Engine(silent=True).serving() as silent:
        scene = await launch(options_with(silent.address))
        report.tried(f"one of 4 endpoints accepts and never responds, under {CLIENTS} streams")
        streams = Streams()
        tasks = await crowd(scene, streams, length=60)
        await until(
            lambda: streams.whole == CLIENTS * 3 // 4, PATIENCE, "the others' streams to end"
        )
        await wait_for_count(scene, silent.address, silent.held)
        held = silent.held
        for task in tasks:
            task.cancel()
        took = await wait_for_count(scene, silent.address, 0)
    report.lost(
        streams_of_its_own=held,
        of_others=CLIENTS - held - streams.whole,
        what=f"counts correct {took:.2f} s after its clients gave up",
    )
    assert held == CLIENTS // 4
    assert took < CORRECTION_SECONDS
    await scene.agree_on_inflight(0)
