from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from extproc.adapters.discovery import discovery
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.discovery.scenes import Scene, observed
from tests.adapters.documents import eventually

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
async def local(server: StandInApiServer, namespace: str) -> AsyncIterator[Scene]:
    """A scene in which loopback addresses are allowed."""
    cluster = Cluster(server.kubeconfig, allow_loopback=True)
    async with observed(cluster) as one:
        yield Scene(server, namespace, one)


class TestRejectedAddress:
    POISON = ("127.0.0.1", "240.0.0.1")

    async def poison(self, scene: Scene, *good: str) -> None:
        """Create a slice of bad and good addresses."""
        named = {f"bad-{number}": address for number, address in enumerate(self.POISON)}
        named |= {f"pod-{number}": address for number, address in enumerate(good)}
        await scene.put_slice("s", named)

    async def test_is_counted_once_while_it_stays(self, scene: Scene) -> None:
        await self.poison(scene, "10.0.0.1")
        await scene.discovery.watch([scene.service])
        assert scene.names == [["pod-0"]]
        shown = str(scene.service)
        assert sorted(scene.observed.refused) == [(shown, "loopback"), (shown, "reserved")]
        await self.poison(scene, "10.0.0.1", "10.0.0.2")
        await eventually(lambda: scene.names == [["pod-0"], ["pod-0", "pod-1"]])
        assert len(scene.observed.refused) == 2
        await scene.put_slice("s", {"a": "10.0.0.9"})
        await scene.becomes(a="10.0.0.9:8000")
        await self.poison(scene)
        await scene.becomes()
        assert len(scene.observed.refused) == 4

    async def test_is_logged_once_even_if_it_returns(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.poison(scene)
        await scene.discovery.watch([scene.service])
        await scene.put_slice("s", {"a": "10.0.0.9"})
        await scene.becomes(a="10.0.0.9:8000")
        await self.poison(scene)
        await scene.becomes()
        assert logged_addresses(caplog) == sorted(self.POISON)

    async def test_many_addresses_do_not_flood_the_log(
        self,
        scene: Scene,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(discovery, "_LOGGED_ADDRESSES", 5)
        await scene.put_slice("s", {f"bad-{i}": f"127.0.0.{i}" for i in range(1, 101)})
        await scene.discovery.watch([scene.service])
        assert len(scene.observed.refused) == 100
        assert len(logged_addresses(caplog)) == 5

    async def test_api_server_is_rejected(self, local: Scene) -> None:
        port = int(local.server.url.rpartition(":")[2])
        await local.put_slice("s", {"bad": "127.0.0.1"}, port=port)
        await local.put_slice("t", {"a": "127.0.0.1"})
        await local.discovery.watch([local.service])
        assert local.published == [{f"{local.namespace}/a": "127.0.0.1:8000"}]
        assert local.observed.refused == [(str(local.service), "api_server")]


def logged_addresses(caplog: pytest.LogCaptureFixture) -> list[str]:
    refusals = (r for r in caplog.records if r.getMessage() == "address rejected")
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return sorted(record.__dict__["fields"]["address"] for record in refusals)
