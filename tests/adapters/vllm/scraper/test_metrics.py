from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.vllm.readings import METRICS, MODELS
from extproc.core.fleet.endpoint import Endpoint
from tests.adapters.documents import eventually
from tests.adapters.vllm.expositions import BASE
from tests.adapters.vllm.scraper.scenes import Start
from tests.adapters.vllm.servers import Scene, Server, model, response


class TestMetrics:
    async def test_are_read_if_a_strategy_needs_them(self, scene: Scene, start: Start) -> None:
        servers = [await start() for _ in range(3)]
        scene.configure(model(*servers))
        await eventually(lambda: scene.has_read(*servers))
        reading = scene.reading(servers[0].address)
        assert reading is not None
        assert (reading.load, reading.running) == ((2.0, 0.125), 3.0)

    async def test_are_read_repeatedly_over_one_connection(
        self, scene: Scene, server: Server
    ) -> None:
        scene.configure(model(server))
        await eventually(lambda: min(scene.results[p, "ok"] for p in (METRICS, MODELS)) >= 5)
        timeouts = scene.results[METRICS, "timeout"] + scene.results[MODELS, "timeout"]
        # A reading that timed out may still get a response, so its connection is not reused.
        assert server.connections <= 1 + timeouts
        assert {result for _, result in scene.results} <= {"ok", "timeout"}

    async def test_request_is_plain(self, scene: Scene, server: Server) -> None:
        scene.configure(model(server))
        await eventually(lambda: scene.has_read(server))
        first, *fields = server.heads[0].decode().split("\r\n")
        assert first == "GET /metrics HTTP/1.1"
        assert f"host: {server.address}" in fields
        assert "accept-encoding: identity" in fields

    async def test_are_stored_with_requests_in_flight_at_the_request(
        self, scene: Scene, server: Server
    ) -> None:
        async def answers_after_a_request_has_come(writer: asyncio.StreamWriter) -> None:
            scene.router.fleet.ledger.acquire("base", Endpoint(server.address, ""))
            writer.write(response(BASE.encode()))

        server.responses[METRICS] = answers_after_a_request_has_come
        scene.configure(model(server, busy=3, idle=3))
        await eventually(lambda: scene.has_read(server))
        reading = scene.reading(server.address)
        assert reading is not None
        assert (reading.ours, scene.router.fleet.ledger.loads[server.address]) == (0, 1)

    async def test_do_not_show_requests_of_others_that_began_and_ended_meanwhile(
        self, scene: Scene, server: Server
    ) -> None:
        async def answers_after_requests_have_ended(writer: asyncio.StreamWriter) -> None:
            ledger, endpoint = scene.router.fleet.ledger, Endpoint(server.address, "")
            leases = [ledger.acquire("base", endpoint) for _ in range(5)]
            for lease in leases:
                lease.release()
            writer.write(response(BASE.encode()))

        server.responses[METRICS] = answers_after_requests_have_ended
        scene.configure(model(server, busy=3, idle=3))
        await eventually(lambda: scene.has_read(server))
        reading = scene.reading(server.address)
        assert reading is not None
        assert reading.load.waiting + reading.running == 5
        assert scene.router.fleet.signals.pressure.share_of_others == 0

    async def test_of_an_ipv6_endpoint_are_read(self, scene: Scene) -> None:
        server = Server()
        try:
            made = await asyncio.start_server(server._serve, "::1", 0)
        except OSError:
            pytest.skip("this machine has no IPv6")
        address = f"[::1]:{made.sockets[0].getsockname()[1]}"
        scene.configure(model(address))
        await eventually(lambda: scene.reading(address) is not None)
        made.close()
