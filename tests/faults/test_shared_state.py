"""A Valkey that fails while gateways share their state through it: no request fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from random import Random

import pytest

from extproc.lab.stack.processes import until
from extproc.lab.stack.valkey import Valkey
from tests.e2e.gateways import Gateways, Processes, sessions, shared_state
from tests.e2e.scene import Options
from tests.extent import PATIENCE, extent
from tests.faults.report import Report
from tests.faults.streams import PACE, WHOLE, streaming

GATEWAYS = 2
CLIENTS = extent(40, full=100)
"""Clients of each gateway."""

ROUNDS = extent(1, full=5)
HARMED_SECONDS = extent(1, full=5)
UNAVAILABLE = "shared state unavailable"

Harm = Callable[[Valkey], Awaitable[None]]


@pytest.fixture(scope="module")
def _processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    options = Options(strategy="PrefixCache", replica_arguments=PACE)
    directory = tmp_path_factory.mktemp("shared-state")
    processes = asyncio.run(Processes.start(directory, options, GATEWAYS))
    yield processes
    asyncio.run(processes.kill())


@pytest.fixture
async def gateways(_processes: Processes) -> AsyncIterator[Gateways]:
    """Two gateways that share their state, without requests in flight."""
    async with sessions(_processes) as gateways:
        await connected(gateways, True)
        await gateways.agree()
        yield gateways


async def connected(gateways: Gateways, expected: bool) -> None:
    """Wait until all sidecars are connected to the server, or none is."""

    async def are() -> bool:
        found = [await shared_state(scene.sidecar) for scene in gateways.scenes]
        return all(one["connected"] is expected for one in found)

    await until(are, PATIENCE, f"connected {expected}")


def outages(gateways: Gateways) -> int:
    """Return the number of log lines on outages."""
    texts = (scene.sidecar.stderr.read_text() for scene in gateways.scenes)
    return sum(text.count(UNAVAILABLE) for text in texts)


async def endure(
    gateways: Gateways, report: Report, harm: Harm, repair: Harm, *, lines: int
) -> None:
    """Harm and repair the server under streams. Each round logs `lines` lines for each sidecar.

    Between the two, the sidecars are not connected if there are any lines.
    """
    before = outages(gateways)
    valkey = gateways.processes.valkey
    async with AsyncExitStack() as cleanup:
        crowds = [
            await cleanup.enter_async_context(streaming(scene, CLIENTS, length=10))
            for scene in gateways.scenes
        ]
        for _ in range(ROUNDS):
            await harm(valkey)
            if lines:
                await connected(gateways, False)
            await asyncio.sleep(HARMED_SECONDS)
            await repair(valkey)
            await connected(gateways, True)
    logged = outages(gateways) - before
    report.lost(
        failed=sum(crowd.failed for crowd in crowds),
        cut=sum(crowd.cut for crowd in crowds),
        what=f"of {sum(crowd.whole for crowd in crowds)} streams, which began within "
        f"{max(crowd.slowest_begin for crowd in crowds):.2f} s; {logged} log lines on outages",
    )
    for crowd in crowds:
        assert crowd.outcomes.keys() == {WHOLE}, crowd.outcomes
    assert logged == lines * ROUNDS * GATEWAYS
    assert await gateways.agree() == {}
    for scene in gateways.scenes:
        routes = {line["route"] for line in scene.envoy.access_log()}
        assert "fallback" not in routes


async def nothing(_: Valkey) -> None:
    """Leave the server as it is."""


def tried(report: Report, what: str) -> None:
    times = f", {ROUNDS} times" if ROUNDS > 1 else ""
    report.tried(f"{what}{times}, under {GATEWAYS * CLIENTS} streams of {GATEWAYS} gateways")


async def test_shared_state_killed(gateways: Gateways, report: Report) -> None:
    """No request fails while the server of the shared state is down or starts again."""
    tried(report, f"SIGKILL of the Valkey, {HARMED_SECONDS:g} s without it")
    await endure(gateways, report, Valkey.kill, Valkey.start, lines=1)


async def test_shared_state_frozen(gateways: Gateways, report: Report) -> None:
    """No request fails while the server of the shared state does not respond."""
    tried(report, f"SIGSTOP of the Valkey for {HARMED_SECONDS:g} s after its clients left")

    async def freeze(valkey: Valkey) -> None:
        valkey.freeze()

    async def thaw(valkey: Valkey) -> None:
        valkey.thaw()

    await endure(gateways, report, freeze, thaw, lines=1)


async def test_shared_state_flushed(gateways: Gateways, report: Report) -> None:
    """No request fails, no connection ends and all counts agree if the server loses its data."""
    tried(report, "FLUSHALL ten times a second")

    async def flush(valkey: Valkey) -> None:
        for _ in range(10):
            await valkey.call("FLUSHALL")
            await asyncio.sleep(0.1)

    await endure(gateways, report, flush, nothing, lines=0)


async def test_shared_state_full(gateways: Gateways, report: Report) -> None:
    """No request fails while the server of the shared state refuses to write."""
    tried(report, "a Valkey without room, which evicts nothing")

    async def fill(valkey: Valkey) -> None:
        await valkey.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await valkey.call("CONFIG", "SET", "maxmemory", "1")

    async def make_room(valkey: Valkey) -> None:
        await valkey.call("CONFIG", "SET", "maxmemory", "0")

    await endure(gateways, report, fill, make_room, lines=1)


async def test_shared_state_garbled(gateways: Gateways, report: Report) -> None:
    """No request fails if others write garbage to the server, or a value of another type."""
    tried(report, "200 entries of garbage, then another type under the key")

    async def garble(valkey: Valkey) -> None:
        rng = Random(0)
        for _ in range(200):
            garbage = rng.randbytes(rng.randrange(200))
            await valkey.call("XADD", "extproc", "*", "o", "stranger", "b", garbage)
        await valkey.call("SET", "extproc", "mine")

    async def remove(valkey: Valkey) -> None:
        await valkey.call("DEL", "extproc")

    await endure(gateways, report, garble, remove, lines=1)


async def test_shared_state_with_other_credentials(gateways: Gateways, report: Report) -> None:
    """No request fails while the server of the shared state refuses the password."""
    tried(report, "a Valkey that suddenly wants a password")

    async def lock(valkey: Valkey) -> None:
        await valkey.call("CONFIG", "SET", "requirepass", "secret")
        valkey.password = "secret"
        await valkey.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def unlock(valkey: Valkey) -> None:
        await valkey.call("CONFIG", "SET", "requirepass", "")
        valkey.password = ""

    await endure(gateways, report, lock, unlock, lines=1)
