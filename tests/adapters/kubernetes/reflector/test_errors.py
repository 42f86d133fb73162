from __future__ import annotations

import asyncio
import logging
from time import monotonic

import pytest

from extproc.adapters import backoff
from extproc.adapters.kubernetes import reflector
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    Unreachable,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.reflector.scenes import (
    ConfigMaps,
    Json,
    added,
    following,
    item,
    scripted,
)
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedResponse,
    Watched,
)
from tests.extent import limit

pytestmark = pytest.mark.usefixtures("quick")


class TestErrors:
    @pytest.mark.parametrize("code", [401, 403, 408, 429, 500, 503])
    async def test_temporary_error_keeps_the_version(self, code: int) -> None:
        trouble = ApiStatusError(code, "not now")
        async with scripted(Listed("1", [item("a")]), trouble, trouble) as (api, running):
            assert [request.since for request in api.requests] == [None, "1", "1", "1"]
            assert running.trouble == f"{code} not now"
            assert running.sets == [{"a": ""}]

    @pytest.mark.parametrize("code", [400, 404, 410, 422, 504])
    async def test_lasting_error_leads_to_a_list(self, code: int) -> None:
        again = Listed("2", [item("a")])
        watch = ApiStatusError(code, "no such thing")
        async with scripted(Listed("1", [item("a")]), Watched(), watch, again) as (api, _):
            assert [request.since for request in api.requests] == [None, "1", "1", None, "2"]

    @pytest.mark.parametrize(
        "line",
        [
            {},
            {"type": "ADDED"},
            {"type": "ADDED", "object": None},
            {"type": "ADDED", "object": {"metadata": {"name": "x"}}},
            {"type": "ADDED", "object": {"metadata": {"resourceVersion": "2"}}},
            {"type": "ADDED", "object": {"metadata": {"name": "x", "resourceVersion": 2}}},
            {"type": "BOOKMARK", "object": {"metadata": {}}},
            {"type": "UNHEARD-OF", "object": item("x", version="2")},
            {"type": ["ADDED"], "object": item("x", version="2")},
        ],
    )
    async def test_malformed_event_leads_to_a_list(self, line: Json) -> None:
        again = Listed("5", [item("b")])
        async with scripted(Listed("1", [item("a")]), Watched([line]), again) as (api, running):
            assert api.verbs == ["list", "watch", "list", "watch"]
            assert running.sets == [{"a": ""}, {"b": ""}]
            assert running.watches == {"garbled": 1}

    @pytest.mark.parametrize(
        ("status", "shown"),
        [
            ({"code": 500, "message": "etcd"}, "500 etcd"),
            ({"code": "x", "message": "etcd"}, "500 etcd"),
            ({}, "500 None"),
            (None, "500 None"),
        ],
    )
    async def test_error_event_leads_to_a_list(self, status: Json | None, shown: str) -> None:
        error = {"type": "ERROR", "object": status}
        async with scripted(Listed("1", [item("a")]), Watched([error])) as (api, running):
            assert running.trouble == shown
            assert api.requests[-1].verb == "list"
            assert running.sets == [{"a": ""}]

    async def test_broken_connection_loses_nothing(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        async with following(api, maps.namespace) as running:
            for turn in range(3):
                await maps.watched(turn + 1)
                await maps.server.drop_watches(abort=True)
                await maps.put(f"{turn}")
            await eventually(lambda: len(running.latest) == 3)
            assert (await maps.verbs()).count("list") == 1
            assert running.watches["unreachable"] >= 1
            assert running.watches["garbled"] == 0

    async def test_malformed_line_leads_to_a_list(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(garbage=True)
            await maps.put("b")
            await eventually(lambda: running.latest == {"a": "", "b": ""})
            assert running.sets == [{"a": ""}, {"a": "", "b": ""}]
            assert (await maps.verbs()).count("list") == 2
            assert running.watches["garbled"] == 1

    async def test_missing_permission_at_first_is_reported_until_granted(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a")
        await maps.server.faults(forbidden=["configmaps"])
        async with following(api, maps.namespace) as running:
            await running.reflector.attempted.wait()
            assert not running.reflector.synced
            assert running.trouble.startswith("403 ")
            assert "configmaps" in running.trouble
            assert running.sets == []
            await maps.server.faults(forbidden=[])
            await eventually(lambda: running.reflector.synced)
            assert running.sets == [{"a": ""}]
            assert not running.trouble

    @pytest.mark.parametrize("fault", [{"forbidden": ["configmaps"]}, {"failing": 429}])
    @pytest.mark.parametrize("later", [{"failing": 500}, {"failing": 503}])
    async def test_later_missing_permission_keeps_the_set(
        self, api: KubernetesApi, maps: ConfigMaps, fault: Json, later: Json
    ) -> None:
        await maps.put("a")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            for trouble in (fault, later):
                await maps.server.faults(forbidden=[], failing=0)
                await maps.server.faults(**trouble)
                await maps.server.drop_watches()
                await running.is_in_trouble(str(trouble.get("failing", 403)))
                assert running.reflector.synced
            await maps.put("b")
            assert running.sets == [{"a": ""}]
            await maps.server.faults(forbidden=[], failing=0)
            await eventually(lambda: running.sets == [{"a": ""}, {"a": "", "b": ""}])
            assert (await maps.verbs()).count("list") == 1
            assert not running.trouble

    async def test_absent_server_keeps_the_set_until_it_returns(
        self, api: KubernetesApi, maps: ConfigMaps, caplog: pytest.LogCaptureFixture
    ) -> None:
        await maps.put("a")
        with caplog.at_level(logging.INFO, "extproc.kubernetes"):
            async with following(api, maps.namespace) as running:
                await maps.watched()
                await maps.server.faults(listening=False)
                confirmed = running.reflector.confirmed_at
                await eventually(lambda: running.watches["unreachable"] >= 4)
                await maps.put("b")
                await maps.delete("a")
                assert running.sets == [{"a": ""}]
                assert running.reflector.confirmed_at == confirmed, "the copy is not current"
                await maps.server.faults(listening=True)
                await eventually(lambda: running.latest == {"b": ""})
                assert running.reflector.confirmed_at > confirmed
                assert (await maps.verbs()).count("list") == 1
        messages = [record.getMessage() for record in caplog.records]
        assert messages[-1] == "watch recovered"
        assert 1 <= messages.count("watch failed, last known objects kept") <= 2, (
            "each error is logged once"
        )

    @pytest.mark.usefixtures("short_watches")
    async def test_frozen_server_is_detected(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        await maps.put("a")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(frozen=True)
            await maps.put("b")
            await running.is_in_trouble("no complete response in time")
            assert running.sets == [{"a": ""}]
            await maps.server.faults(frozen=False)
            await eventually(lambda: running.latest == {"a": "", "b": ""})
            assert (await maps.verbs()).count("list") == 1

    @pytest.mark.usefixtures("short_watches")
    async def test_silent_watch_is_detected(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(silent_watches=True)
            began = monotonic()
            await maps.put("a")
            await eventually(lambda: running.latest == {"a": ""})
            assert 0.5 < monotonic() - began < limit(2)
            assert running.watches["unreachable"] == 1

    async def test_end_when_a_watch_opens_without_events(self) -> None:
        script: list[ScriptedResponse] = [Listed("1"), Unreachable("no"), Watched(stays_open=True)]
        api = ScriptedApi(configmaps=script)
        async with following(api, "ns") as running:
            await running.is_in_trouble("no")
            confirmed = running.reflector.confirmed_at
            await eventually(lambda: not running.trouble)
            assert running.reflector.confirmed_at > confirmed
            assert running.sets == [{}]

    async def test_repeated_errors_lengthen_the_waits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits: list[float] = []

        class Recording(backoff.Backoff):
            def next(self) -> float:
                waits.append(super().next())
                return waits[-1]

        monkeypatch.setattr(reflector, "Backoff", Recording)
        api = ScriptedApi(configmaps=[Unreachable("no")] * 7)
        async with following(api, "ns") as running:
            await eventually(lambda: len(api.requests) == 7)
            assert not running.reflector.synced
        assert waits[5] > 3 * waits[0]

    @pytest.mark.parametrize("code", [429, 503])
    async def test_wait_is_as_long_as_the_server_asks(self, code: int) -> None:
        busy = ApiStatusError(code, "busy", retry_after=1.0)
        api = ScriptedApi(configmaps=[busy, Listed("1", [item("a")])])
        async with following(api, "ns") as running:
            await running.reflector.attempted.wait()
            began = monotonic()
            await eventually(lambda: running.latest == {"a": ""})
            assert monotonic() - began >= 0.9

    async def test_wait_has_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reflector, "LONGEST_RETRY_SECONDS", 0.01)
        busy = ApiStatusError(429, "busy", retry_after=1e9)
        async with scripted(busy, Listed("1", [item("a")])) as (_, running):
            assert running.sets == [{"a": ""}]

    async def test_plain_text_is_the_trouble(self, api: KubernetesApi, maps: ConfigMaps) -> None:
        await maps.server.faults(failing=429)
        async with following(api, maps.namespace) as running:
            await running.reflector.attempted.wait()
            assert running.trouble == "429 Too many requests, please try again later."

    async def test_unexpected_exception_is_logged_and_retried(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        again = Listed("3", [item("c")])
        api = ScriptedApi(configmaps=[Listed("1", [item("a")]), Watched([added("b", "2")]), again])
        async with following(api, "ns") as running:

            def fail() -> None:
                if len(running.sets) == 2:
                    raise ZeroDivisionError("ours")

            running.on_report = fail
            await eventually(lambda: len(api.requests) == 4)
            assert api.verbs == ["list", "watch", "list", "watch"]
            assert running.sets == [{"a": ""}, {"a": "", "b": ""}, {"c": ""}]
        (record,) = (record for record in caplog.records if record.exc_info)
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], ZeroDivisionError)

    async def test_unexpected_exception_in_first_list_counts_as_attempt(self) -> None:
        api = ScriptedApi(configmaps=[Listed("1"), Listed("2", [item("a")])])
        async with following(api, "ns") as running:

            def fail() -> None:
                if len(running.sets) == 1:
                    raise ZeroDivisionError("ours")

            running.on_report = fail
            await asyncio.wait_for(running.reflector.attempted.wait(), 5)
            assert running.trouble == "ours"
            await eventually(lambda: running.latest == {"a": ""})
