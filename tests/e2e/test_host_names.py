"""Endpoints with host names, and models without endpoints, behind real Envoy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.adapters.dns.server import DnsServer, a
from tests.e2e.forked import ForkedFileSidecar, ForkedFleet
from tests.e2e.scene import Launch, Options, Scene, chat
from tests.extent import PATIENCE


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    server = await DnsServer().start()
    yield server
    await server.stop()


def by_dns(dns: DnsServer, replicas: int = 1) -> Options:
    flag = ("--dns-server", f"127.0.0.1:{dns.address.port}")
    return Options(replicas=replicas, sidecar_arguments=flag)


def configure(scene: Scene, endpoints: Sequence[str]) -> None:
    assert isinstance(scene.sidecar, FileSidecar)
    scene.sidecar.write_models(Options().models(endpoints))


async def routes_to(scene: Scene, addresses: Sequence[str]) -> None:
    """Wait until the sidecar has these endpoints, each named by its address."""

    async def has_them() -> bool:
        found = (await scene.sidecar.state())["llama"]["endpoints"]
        assert all(one["name"] == one["address"] for one in found)
        return [one["address"] for one in found if one["state"] == "ready"] == list(addresses)

    await until(has_them, PATIENCE, f"the endpoints {addresses}")


async def test_requests_reach_the_current_addresses_of_a_name(
    launch: Launch, dns: DnsServer, tmp_path: Path
) -> None:
    scene = await launch(by_dns(dns))
    port = scene.replicas.addresses[0].rpartition(":")[2]
    dns.records = a({"vllm.test.": ["127.0.0.1"]}, ttl=1)
    configure(scene, [f"vllm.test:{port}"])

    async def was_queried() -> bool:
        return await scene.metric("extproc_name_lookups_total", result="ok") > 0

    await until(was_queried, PATIENCE, "a lookup")
    await routes_to(scene, [f"127.0.0.1:{port}"])
    assert (await scene.send(chat("hello"))).status == 200

    (tmp_path / "second").mkdir()
    second = ForkedFleet(1, tmp_path / "second", ("--host", "127.0.0.2", "--ports", port))
    await second.start()
    try:
        dns.records = a({"vllm.test.": ["127.0.0.2"]}, ttl=1)
        await routes_to(scene, [f"127.0.0.2:{port}"])
        assert (await scene.send(chat("hello"))).status == 200

        await dns.stop()
        log = scene.sidecar.stderr
        await until(
            lambda: "endpoint name not resolved" in log.read_text(),
            PATIENCE,
            "the warning in the log",
        )
        assert (await scene.send(chat("hello"))).status == 200
        first, *later = await scene.access_log(3)
        assert first["upstream"] == f"127.0.0.1:{port}"
        assert {line["upstream"] for line in later} == {f"127.0.0.2:{port}"}
    finally:
        await second.stop()


async def test_without_endpoints_the_sidecar_is_ready_and_refuses_requests(launch: Launch) -> None:
    scene = await launch(Options(replicas=1))
    configure(scene, [])
    await routes_to(scene, [])
    assert (await scene.sidecar.get("/readyz"))[0] == 200
    reply = await scene.send(chat("hello"))
    assert (reply.status, reply.error()["code"]) == (503, "no_endpoints")
    assert "retry-after" in reply.headers

    configure(scene, scene.replicas.addresses)
    await routes_to(scene, scene.replicas.addresses)
    assert (await scene.send(chat("hello"))).status == 200


async def test_the_sidecar_is_ready_after_the_first_dns_response(
    dns: DnsServer, tmp_path: Path
) -> None:
    dns.mode, dns.records = "silent", a({"vllm.test.": ["127.0.0.1"]})
    models = Options().models(["vllm.test:8000"])
    sidecar = ForkedFileSidecar(models, tmp_path, arguments=by_dns(dns).sidecar_arguments)
    sidecar.spawn()
    try:
        why = "endpoints vllm.test:8000: vllm.test: no response from DNS within 4.5 s\n"

        async def reports_why() -> bool:
            return dns.asked("vllm.test.") > 0 and await sidecar.get("/readyz") == (503, why)

        await until(reports_why, PATIENCE, why)
        dns.mode = "answer"
        await until(sidecar.is_ready, PATIENCE, "the sidecar to be ready")
    finally:
        await sidecar.stop()
    assert "Traceback" not in sidecar.stderr.read_text()
