"""The scale and the process of the stand-in API server."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from extproc.lab.api_server.__main__ import parse
from extproc.lab.api_server.builders import endpoint_slice
from extproc.lab.api_server.process import StandInApiServer
from extproc.lab.stack.processes import free_port, until
from tests.extent import PATIENCE
from tests.lab.api_server.api import (
    SOON,
    Api,
    Json,
    address_of,
)


class TestScale:
    async def test_fifty_watches_receive_a_thousand_writes(self, api: Api) -> None:
        version = await api.version()

        async def count_events() -> int:
            async with api.watch(resourceVersion=version) as watch:
                for number in range(1000):
                    event = await watch.event()
                    assert event["type"] == "ADDED", number
            return 1000

        async def write(names: Iterator[int]) -> None:
            for i in names:
                assert (await api.ask("POST", api.maps, api.map(f"m{i}", "x" * 100))).status == 201

        before = await api.server.open_watches()
        watching = [asyncio.create_task(count_events()) for _ in range(50)]

        async def all_open() -> bool:
            return await api.server.open_watches() == before + 50

        await until(all_open, SOON, "fifty watches")
        names = iter(range(1000))
        await asyncio.gather(*(write(names) for _ in range(10)))
        assert await asyncio.gather(*watching) == [1000] * 50

    async def test_a_thousand_endpoints_are_listed_and_watched(self, api: Api) -> None:
        def slices(ready: bool) -> list[Json]:
            return [
                endpoint_slice(
                    "s",
                    api.namespace,
                    f"s-{i:02}",
                    [(f"10.0.{i}.{j}", f"p-{i}-{j}", {"ready": ready}) for j in range(84)],
                )
                for i in range(12)
            ]

        await api.server.apply(*slices(ready=True))
        listed = await api.get(api.slices)
        assert sum(len(item["endpoints"]) for item in listed.json["items"]) == 1008
        async with api.watch(api.slices, resourceVersion=listed.version) as watch:
            await api.server.apply(*slices(ready=False))
            for i in range(12):
                assert await watch.seen() == ("MODIFIED", f"s-{i:02}")


class TestProcess:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_stops_cleanly_with_open_watches(
        self, number: signal.Signals, tmp_path: Path
    ) -> None:
        server = StandInApiServer(tmp_path)
        await server.start()
        async with aiohttp.ClientSession() as session:
            api = Api(server, session)
            async with api.watch() as watch:
                server.signal(number)
                assert await watch.line() == b""
        assert await server.wait(5) == 0
        assert server.error_output() == ""

    async def test_stops_while_frozen(self, tmp_path: Path) -> None:
        server = StandInApiServer(tmp_path)
        await server.start()
        async with aiohttp.ClientSession() as session, Api(server, session).watch():
            await server.faults(frozen=True)
            server.signal(signal.SIGTERM)
            assert await server.wait(5) == 0
        assert server.error_output() == ""

    async def test_restarts_empty_on_the_same_port(self, api: Api, tmp_path: Path) -> None:
        port = free_port()
        arguments = ["--port", str(port)]
        server = StandInApiServer(tmp_path, arguments)
        await server.start()
        await server.kill()
        again = StandInApiServer(tmp_path, arguments)
        await again.start()
        try:
            assert address_of(again)[1] == port
            assert (await Api(again, api.session).get("/api/v1/configmaps")).names == []
        finally:
            await again.stop()

    async def test_keeps_a_closed_port_reserved(self, server: StandInApiServer) -> None:
        await server.faults(listening=False)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address_of(server))

    async def test_reports_a_used_port_in_one_line(self, server: StandInApiServer) -> None:
        port = str(address_of(server)[1])
        command = [sys.executable, "-m", "extproc.lab.api_server", "--port", port]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert result.returncode == 1
        assert result.stderr.startswith("stand-in API server: ")
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize("arguments", [["--port", "x"], ["--control-port", "70000"]])
    def test_refuses_invalid_arguments(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            parse(arguments)
        assert exit_.value.code == 2

    def test_announces_ports_that_the_kernel_chooses(self) -> None:
        assert parse([]).announce
        assert not parse(["--port", "8001", "--control-port", "8002"]).announce
        assert parse(["--port", "8001", "--control-port", "8002", "--announce"]).announce
