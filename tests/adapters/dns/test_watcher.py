from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pytest

from extproc.adapters.dns.lookup import LookupFailed, NoAddresses, Resolved, Unanswered
from extproc.adapters.dns.names import Names
from extproc.adapters.dns.watcher import NamesWatcher
from extproc.adapters.endpoints.addresses import FoundAddress, RejectedAddress
from extproc.adapters.endpoints.selection import select_endpoints
from extproc.core.schema import NamedEndpoints
from tests.adapters.dns.server import FakeTime, settle

Results = dict[str, Resolved | LookupFailed]


def resolved(*addresses: str, ttl: float = 10) -> Resolved:
    return Resolved(addresses, ttl)


class Scene:
    """A watcher of endpoints, and a resolver with scripted results."""

    def __init__(self, *endpoints: str, results: Results) -> None:
        self.results = results
        self.pending = asyncio.Event()
        self.pending.set()
        self.published: list[list[FoundAddress | RejectedAddress]] = []
        self.time = FakeTime()
        self.names = Names(
            self._resolve, self, Random(0), clock=self.time.clock, sleep=self.time.sleep
        )
        self.source = NamedEndpoints(endpoints)
        self.watcher = NamesWatcher(self.source, self.names, self._take)
        self._running = asyncio.create_task(self.watcher.run())

    def addresses(self) -> list[str]:
        """Return the endpoints that were published last."""
        found = [one for one in self.published[-1] if isinstance(one, FoundAddress)]
        return [endpoint.address for endpoint in select_endpoints(found)]

    def looked_up(self, result: str) -> None:
        pass

    async def end(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _resolve(self, host: str) -> Resolved:
        result = self.results[host]
        if host.startswith("slow"):
            await self.pending.wait()
        if isinstance(result, LookupFailed):
            raise result
        return result

    def _take(self, found: Iterable[FoundAddress | RejectedAddress]) -> None:
        self.published.append(list(found))


async def test_each_address_of_a_name_is_an_endpoint() -> None:
    scene = Scene(
        "vllm:8000",
        "10.0.0.9:8001",
        "[fd00::9]:8001",
        "six:8002",
        results={"vllm": resolved("10.0.0.2", "10.0.0.1"), "six": resolved("fd00::1")},
    )
    await settle()
    assert scene.addresses() == [
        "10.0.0.1:8000",
        "10.0.0.2:8000",
        "10.0.0.9:8001",
        "[fd00::1]:8002",
        "[fd00::9]:8001",
    ]
    await scene.end()


async def test_address_under_two_names_is_one_endpoint() -> None:
    scene = Scene(
        *("a:8000", "b:8000", "10.0.0.1:8000", "b:8001"),
        results={"a": resolved("10.0.0.1"), "b": resolved("10.0.0.1")},
    )
    await settle()
    assert scene.addresses() == ["10.0.0.1:8000", "10.0.0.1:8001"]
    await scene.end()


async def test_publishes_nothing_before_each_name_was_looked_up() -> None:
    """A model that moves to names must have all its endpoints at every moment."""
    results: Results = {"a": resolved("10.0.0.1"), "slow": Unanswered("no response")}
    scene = Scene("a:8000", "slow:8000", results=results)
    scene.pending.clear()
    await settle()
    attempt = asyncio.create_task(scene.watcher.wait_for_attempt())
    await settle()
    assert (scene.published, attempt.done()) == ([], False)
    assert scene.watcher.trouble == "slow: waiting for DNS"
    scene.pending.set()
    await attempt
    assert scene.addresses() == ["10.0.0.1:8000"]
    assert not scene.watcher.synced
    assert scene.watcher.trouble == "slow: no response"
    await scene.end()


async def test_change_of_one_name_publishes_all_endpoints() -> None:
    results: Results = {"a": resolved("10.0.0.1"), "b": resolved("10.0.0.2")}
    scene = Scene("a:8000", "b:8000", results=results)
    await settle()
    results["b"] = resolved("10.0.0.3")
    await scene.time.advance(10)
    assert scene.addresses() == ["10.0.0.1:8000", "10.0.0.3:8000"]
    results["a"] = NoAddresses("the name does not exist")
    await scene.time.advance(60)
    assert scene.addresses() == ["10.0.0.3:8000"]
    assert scene.watcher.trouble is None
    await scene.end()


async def test_second_list_has_known_addresses_at_once() -> None:
    results: Results = {"a": resolved("10.0.0.1")}
    scene = Scene("a:8000", results=results)
    await settle()
    results["a"] = Unanswered("no response")
    published: list[list[FoundAddress | RejectedAddress]] = []
    longer = NamedEndpoints(("a:8000", "10.0.0.7:8000"))
    second = NamesWatcher(longer, scene.names, lambda found: published.append(list(found)))
    running = asyncio.create_task(second.run())
    await second.wait_for_attempt()
    assert [one.address for one in published[-1]] == ["10.0.0.1", "10.0.0.7"]
    assert second.synced
    await scene.end()
    running.cancel()
    await asyncio.wait([running])


async def test_age_is_that_of_the_oldest_confirmation() -> None:
    results: Results = {"a": resolved("10.0.0.1"), "b": resolved("10.0.0.2")}
    scene = Scene("a:8000", "b:8000", results=results)
    await settle()
    results["b"] = Unanswered("no response")
    await scene.time.advance(100)
    assert scene.watcher.confirmed_at == 0
    await scene.end()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("169.254.169.254", "link_local"),
        ("fe80::1", "link_local"),
        ("224.0.0.1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("fd00:ec2::254", "metadata"),
        ("240.0.0.1", "reserved"),
    ],
)
async def test_impossible_address_is_rejected(address: str, reason: str) -> None:
    scene = Scene("vllm:8000", results={"vllm": resolved(address, "10.0.0.1")})
    await settle()
    assert RejectedAddress(address, reason) in scene.published[-1]  # type: ignore[arg-type]  # a StrEnum
    assert scene.addresses() == ["10.0.0.1:8000"]
    await scene.end()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_name_can_resolve_to_loopback(address: str) -> None:
    """The document's author could also write the address."""
    scene = Scene("localhost:8000", results={"localhost": resolved(address)})
    await settle()
    assert len(scene.addresses()) == 1
    await scene.end()
