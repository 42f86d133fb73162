"""Requests and watches over HTTP/2, and the return to HTTP/1.1."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from extproc.adapters.kubernetes import connections, http2_ping, http_api, reflector
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import Unreachable
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.core.schema import ServiceSpec
from extproc.lab.api_server.builders import endpoint_slice
from tests.adapters.discovery.scenes import READY, Scene, observed
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.http_api.secure import NEW, OLD, SecureServer, bundle
from tests.adapters.kubernetes.http_api.servers import MAPS, write_kubeconfig
from tests.adapters.kubernetes.reflector.scenes import RunningReflector, following

pytestmark = pytest.mark.usefixtures("quick")


async def requests(secure: SecureServer, verb: str = "") -> list[dict[str, Any]]:
    return [one for one in await secure.process.requests() if verb in ("", one["verb"])]


async def ports(secure: SecureServer) -> list[int]:
    """Return the client's port of each connection, in order."""
    return list(dict.fromkeys(one["client_port"] for one in await requests(secure)))


async def durations(secure: SecureServer) -> list[int]:
    return [int(one["query"]["timeoutSeconds"]) for one in await requests(secure, "watch")]


async def watched(secure: SecureServer, times: int = 1) -> None:
    async def is_watched() -> bool:
        return [one["status"] for one in await requests(secure, "watch")].count(200) >= times

    await eventually(is_watched)


async def arrives(running: RunningReflector, secure: SecureServer, name: str) -> None:
    await secure.put(name)
    await eventually(lambda: name in running.latest)


class TestConnection:
    async def test_is_one_for_all_namespaces_and_services(self, secure: SecureServer) -> None:
        namespaces, numbers = ("one", "two"), range(25)
        services = [
            ServiceSpec(namespace=namespace, name=f"s{number}", port="http")
            for namespace in namespaces
            for number in numbers
        ]
        for one in services:
            endpoints = [("10.0.0.7", f"{one.name}-1", READY)]
            name = f"{one.name}-slice"
            await secure.process.apply(endpoint_slice(one.name, one.namespace, name, endpoints))
        cluster = Cluster(secure.process.kubeconfig, allow_loopback=False)
        async with observed(cluster) as found:
            scene = Scene(secure.process, "one", found)
            await scene.discovery.watch(services)
            await watched(secure, times=2)
            assert all(found.found(one) for one in services)
            verbs = Counter(one["verb"] for one in await requests(secure))
            assert verbs == {"list": 2, "watch": 2}
            assert len(await ports(secure)) == 1

    async def test_carries_watches_of_five_to_ten_minutes(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        async with following(secure_api, "ns"):
            await watched(secure)
        assert 300 <= (await durations(secure))[0] <= 600

    async def test_carries_each_renewed_watch(
        self, secure: SecureServer, secure_api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reflector, "PINGED_WATCH_SECONDS", (1, 1))
        async with following(secure_api, "ns") as running:
            await watched(secure, times=3)
            assert running.watches.keys() == {"ended"}
        # A busy machine may start a fourth watch before the reflector stops.
        assert set(await durations(secure)) == {1}
        assert len(await ports(secure)) == 1

    async def test_opens_once_for_requests_that_come_together(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        await asyncio.gather(*(secure_api.get(MAPS, {}) for _ in range(20)))
        assert len(await ports(secure)) == 1

    async def test_that_cannot_be_opened_fails_all_of_them(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        await secure.process.faults(listening=False)
        got = await asyncio.gather(
            *(secure_api.get(MAPS, {}) for _ in range(6)), return_exceptions=True
        )
        assert {type(one) for one in got} == {Unreachable}
        await secure.process.faults(listening=True)
        assert await secure_api.get(MAPS, {})

    async def test_reports_that_the_server_responds(
        self, secure: SecureServer, secure_api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http2_ping, "PING_SECONDS", 0.01)
        async with following(secure_api, "ns") as running:
            await watched(secure)
            times: set[float] = set()

            def has_grown() -> bool:
                times.add(running.reflector.confirmed_at)
                return len(times) > 3

            await eventually(has_grown)
        assert len(await durations(secure)) == 1


class TestGoAway:
    async def test_loses_no_event(self, secure: SecureServer, secure_api: KubernetesApi) -> None:
        async with following(secure_api, "ns") as running:
            await arrives(running, secure, "a")
            for number in range(5):
                await secure.process.faults(goaway=True)
                await arrives(running, secure, f"while-open-{number}")
                await secure_api.get(MAPS, {})
                await secure.process.drop_watches()
                await arrives(running, secure, f"after-{number}")
            assert running.lists == {"ok": 1}
            assert running.watches.keys() == {"ended"}
        assert len(await ports(secure)) > 1

    async def test_under_many_requests_fails_none(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        async def ask() -> None:
            for _ in range(20):
                await secure_api.get(MAPS, {})

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for _ in range(http_api._ATTEMPTS - 1):
            await secure.process.faults(goaway=True)
        await asyncio.gather(*asking)
        assert {one["status"] for one in await requests(secure)} == {200}


class TestSilence:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http2_ping, "PING_SECONDS", 0.05)
        monkeypatch.setattr(http2_ping, "SILENCE_SECONDS", 0.5)
        monkeypatch.setattr(http2_ping, "_LATE_SECONDS", 0.5)
        monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.5)

    async def test_of_a_stopped_server_is_noticed(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        async with following(secure_api, "ns") as running:
            await arrives(running, secure, "a")
            await watched(secure)
            secure.process.signal(signal.SIGSTOP)
            try:
                await eventually(lambda: running.watches["unreachable"] >= 2)
                assert running.latest == {"a": ""}
            finally:
                secure.process.signal(signal.SIGCONT)
            await arrives(running, secure, "b")
            assert running.lists == {"ok": 1}
            await eventually(lambda: not running.trouble)

    async def test_of_a_frozen_server_is_noticed(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        async with following(secure_api, "ns") as running:
            await arrives(running, secure, "a")
            await watched(secure)
            await secure.process.faults(frozen=True)
            await eventually(lambda: "PING" in running.trouble)
            await secure.process.faults(frozen=False)
            await arrives(running, secure, "b")

    async def test_during_the_handshake_is_noticed(self, tmp_path: Path) -> None:
        async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(ignore, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, f"https://127.0.0.1:{port}"))
        with pytest.raises(Unreachable, match="no complete response in time"):
            await api.get(MAPS, {})
        await api.close()
        server.close()


class TestHttp11:
    async def test_is_used_if_the_server_does_not_offer_http2(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        await secure.process.faults(listening=False, http2=False)
        await secure.process.faults(listening=True)
        async with following(secure_api, "ns") as running:
            await arrives(running, secure, "a")
            await watched(secure)
        assert 20 <= (await durations(secure))[0] <= 30

    async def test_is_left_when_the_server_offers_http2(
        self, secure: SecureServer, secure_api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "_FALLBACK_SECONDS", 0.0)
        await secure.process.faults(listening=False, http2=False)
        await secure.process.faults(listening=True)
        await secure_api.get(MAPS, {})
        assert secure_api._connections._http2 == []
        await secure.process.faults(listening=False, http2=True)
        await secure.process.faults(listening=True)
        await secure_api.get(MAPS, {})
        assert len(secure_api._connections._http2) == 1

    async def test_is_used_through_a_proxy(
        self, secure: SecureServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "")
        api = await KubernetesApi.connect(secure.process.kubeconfig)
        with pytest.raises(Unreachable):
            await api.get(MAPS, {})
        assert await requests(secure) == []
        await api.close()


class TestCredentials:
    async def test_changed_authority_gets_a_connection_of_its_own(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        async with following(secure_api, "ns") as running:
            await arrives(running, secure, "a")
            await watched(secure)
            (old,) = secure_api._connections._http2
            secure.bundle.write_bytes(bundle(OLD, NEW))
            await secure_api.get(MAPS, {})
            assert len(await ports(secure)) == 2
            await arrives(running, secure, "b")
            await secure.process.drop_watches()
            await watched(secure, times=2)
            assert len(await ports(secure)) == 2
            await eventually(lambda: old.closed)
            assert not secure_api._connections._http2[-1].closed

    async def test_changed_token_is_sent_on_the_same_connection(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        await secure_api.get(MAPS, {})
        await secure.process.faults(token="new")
        text = secure.process.kubeconfig.read_text()
        secure.process.kubeconfig.write_text(text.replace("user: {}", "user: {token: new}"))
        await secure_api.get(MAPS, {})
        assert len(await ports(secure)) == 1
