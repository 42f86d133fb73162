from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from extproc.adapters.kubernetes import http_api as kubernetes_api
from extproc.adapters.kubernetes import turns
from extproc.adapters.kubernetes.api import OPENED, WatchSeconds
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    MalformedResponse,
    Unreachable,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from extproc.adapters.kubernetes.objects import Json
from extproc.lab.api_server.builders import config_map
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.kubernetes.http_api.servers import (
    MAPS,
    MINUTE,
    Handler,
    StartServer,
    write_kubeconfig,
)


def with_status(status: int, text: str, **headers: str) -> Handler:
    sent = {"Content-Type": "text/plain; charset=utf-8"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }

    async def respond(_: web.Request) -> web.Response:
        return web.Response(status=status, body=text.encode(), headers=sent)

    return respond


class TestResponse:
    @pytest.mark.parametrize(
        ("status", "text", "shown"),
        [
            (403, '{"message": "no\\nway"}', "403 no"),
            (410, '{"reason": "Expired"}', "410 Expired"),
            (503, "busy", "503 busy"),
            (500, "", "500 Internal Server Error"),
            (404, '"x"', '404 "x"'),
            (599, "", "599 no reason"),
            (429, "Too many requests\n\nplease", "429 Too many requests"),
            (429, json.dumps({"message": "x" * 5000}), "429 " + "x" * 500),
        ],
    )
    async def test_error_status_has_the_servers_message(
        self, status: int, text: str, shown: str, start_server: StartServer
    ) -> None:
        api = await start_server(with_status(status, text))
        with pytest.raises(ApiStatusError) as got:
            await api.get(MAPS, {})
        assert (got.value.code, str(got.value)) == (status, shown)
        with pytest.raises(ApiStatusError) as got:
            await api.create(MAPS, {})
        assert str(got.value) == shown
        with pytest.raises(ApiStatusError) as got:
            await anext(api.watch(MAPS, {}, MINUTE))
        assert str(got.value) == shown

    async def test_markup_is_not_a_reason(self, start_server: StartServer) -> None:
        api = await start_server(with_status(503, "<html>", Content_Type="text/html"))
        with pytest.raises(ApiStatusError, match="503 Service Unavailable"):
            await api.get(MAPS, {})

    @pytest.mark.parametrize(
        ("headers", "text", "seconds"),
        [
            ({"Retry_After": "7"}, "busy", 7),
            ({"Retry_After": "7"}, '{"details": {"retryAfterSeconds": 3}}', 7),
            ({}, '{"details": {"retryAfterSeconds": 3}}', 3),
            ({"Retry_After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "", 0),
            ({"Retry_After": "-1"}, '{"details": {"retryAfterSeconds": -1}}', 0),
            ({}, '{"details": {"retryAfterSeconds": "x"}}', 0),
            ({}, '{"details": []}', 0),
            ({}, "", 0),
        ],
    )
    async def test_error_has_the_wait_for_which_the_server_asks(
        self, headers: dict[str, str], text: str, seconds: float, start_server: StartServer
    ) -> None:
        api = await start_server(with_status(429, text, **headers))
        with pytest.raises(ApiStatusError) as got:
            await api.get(MAPS, {})
        assert got.value.retry_after == seconds

    @pytest.mark.parametrize(
        "text", ["", "[]", "7", "{", "[" * 100_000, "9" * 5000, '{"a": \udc00']
    )
    async def test_other_than_an_object_is_malformed(
        self, text: str, start_server: StartServer
    ) -> None:
        async def respond(_: web.Request) -> web.Response:
            return web.Response(body=text.encode(errors="surrogatepass"))

        api = await start_server(respond)
        with pytest.raises(MalformedResponse):
            await api.get(MAPS, {})

    async def test_missing_one_is_unreachable(
        self, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kubernetes_api, "READ_SECONDS", 0.05)

        async def respond(_: web.Request) -> web.Response:
            await asyncio.sleep(60)
            raise AssertionError

        api = await start_server(respond)
        with pytest.raises(Unreachable, match="no complete response in time"):
            await api.get(MAPS, {})
        with pytest.raises(Unreachable, match="no complete response in time"):
            await anext(api.watch(MAPS, {}, WatchSeconds(0, 0, 0.05)))

    async def test_closed_port_is_unreachable(self, tmp_path: Path) -> None:
        api = await KubernetesApi.connect(write_kubeconfig(tmp_path, "http://127.0.0.1:1"))
        with pytest.raises(Unreachable) as got:
            await api.get(MAPS, {})
        assert "\n" not in str(got.value)
        await api.close()

    async def test_query_is_encoded(self, start_server: StartServer) -> None:
        async def respond(request: web.Request) -> web.Response:
            return web.json_response(dict(request.query))

        api = await start_server(respond)
        query = {"labelSelector": "a/b=c,d=e+f g&h%20", "limit": 500}
        assert await api.get(MAPS, query) == {**query, "limit": "500"}


class TestWatch:
    async def watched(self, start_server: StartServer, *chunks: bytes) -> list[Json]:
        async def respond(request: web.Request) -> web.StreamResponse:
            assert request.query["watch"] == "true"
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            return response

        api = await start_server(respond)
        opened, *events = [event async for event in api.watch(MAPS, {"limit": 1}, MINUTE)]
        assert opened is OPENED
        return events

    async def test_has_an_event_on_each_line_in_any_chunks(self, start_server: StartServer) -> None:
        assert await self.watched(start_server, b'{"a"', b': 1}\n{"b": 2}\n{"', b'c": 3}\n') == [
            {"a": 1},
            {"b": 2},
            {"c": 3},
        ]

    async def test_can_be_empty(self, start_server: StartServer) -> None:
        assert await self.watched(start_server) == []

    async def test_can_carry_the_largest_object(self, start_server: StartServer) -> None:
        # The API server escapes these characters.
        large = json.dumps({"data": "<" * 1_500_000}).replace("<", "\\u003c").encode() + b"\n"
        assert len(await self.watched(start_server, large, large)) == 2

    @pytest.mark.parametrize("line", [b"{\n", b"\n", b"[]\n", b'{"a"', b"x" * 17_000_000])
    async def test_malformed_event_is_refused(self, line: bytes, start_server: StartServer) -> None:
        with pytest.raises(MalformedResponse):
            await self.watched(start_server, line)

    async def test_broken_connection_is_unreachable(self, start_server: StartServer) -> None:
        async def respond(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'{"a": 1}\n{"b"')
            assert request.transport is not None
            request.transport.close()
            return response

        api = await start_server(respond)
        events = api.watch(MAPS, {}, MINUTE)
        assert await anext(events) is OPENED
        assert await anext(events) == {"a": 1}
        with pytest.raises(Unreachable):
            await anext(events)


async def test_creates_an_object(server: StandInApiServer, api: KubernetesApi) -> None:
    await api.create("/api/v1/namespaces/created/configmaps", config_map("created", "a", {}))
    (found,) = await server.objects("configmaps", "created")
    assert found["metadata"]["name"] == "a"


class TestTurns:
    async def test_limit_the_requests_that_wait(
        self, server: StandInApiServer, api: KubernetesApi
    ) -> None:
        await server.faults(list_delay=0.02, capacity=turns.MOST_AT_ONCE)
        await asyncio.gather(*(api.get(MAPS, {}) for _ in range(50)))
        requests = await server.requests()
        assert [one["status"] for one in requests] == [200] * 50
        assert max(one["queued"] for one in requests) <= turns.MOST_AT_ONCE

    async def test_do_not_limit_open_watches(
        self, server: StandInApiServer, api: KubernetesApi
    ) -> None:
        before = await server.open_watches()
        watches = [api.watch(MAPS, {}, MINUTE) for _ in range(20)]
        for one in watches:
            assert await anext(one) is OPENED
        assert await server.open_watches() == before + 20
        for one in watches:
            await one.aclose()

    async def test_expire_for_requests_that_hang(
        self, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(turns, "LONGEST_SECONDS", 0.01)

        async def respond(request: web.Request) -> web.Response:
            if request.query.get("hang"):
                await asyncio.sleep(3600)
            return web.json_response({})

        api = await start_server(respond)
        hanging = [
            asyncio.create_task(api.get(MAPS, {"hang": "1"})) for _ in range(turns.MOST_AT_ONCE)
        ]
        await asyncio.sleep(0.001)
        assert await api.get(MAPS, {}) == {}
        for one in hanging:
            one.cancel()
        await asyncio.wait(hanging)
        # Turns that expired are given back once.
        assert api._turns._free._value == turns.MOST_AT_ONCE
