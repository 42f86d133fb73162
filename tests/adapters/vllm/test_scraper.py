from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import socket
import weakref
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic

import pytest

from extproc.adapters.vllm import endpoint
from extproc.adapters.vllm.readings import METRICS, MODELS, Result
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.request.refusals import ModelNotFound
from extproc.core.routing.catalog import Catalog
from tests.adapters.documents import eventually
from tests.adapters.vllm.expositions import BASE
from tests.adapters.vllm.servers import Behave, Scene, Server, answer, in_use, model, model_list

Start = Callable[[], Awaitable[Server]]


def known(scene: Scene, name: str) -> bool:
    """Return True if requests can use this name."""
    try:
        scene.router.resolve(name, None, {})
    except ModelNotFound:
        return False
    return True


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
            writer.write(answer(BASE.encode()))

        server.answers[METRICS] = answers_after_a_request_has_come
        scene.configure(model(server, busy=3, idle=3))
        await eventually(lambda: scene.has_read(server))
        reading = scene.reading(server.address)
        assert reading is not None
        assert (reading.ours, scene.router.fleet.ledger.loads[server.address]) == (0, 1)

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


class TestEndpoint:
    @pytest.mark.parametrize(
        ("strategy", "discover", "asked"),
        [
            ("PrefixHash", None, set()),
            ("PrefixHash", True, {MODELS}),
            ("LeastQueue", None, {METRICS, MODELS}),
            ("LeastQueue", False, {METRICS}),
        ],
    )
    async def test_receives_only_requests_for_wanted_paths(
        self, scene: Scene, start: Start, strategy: str, discover: bool | None, asked: set[str]
    ) -> None:
        server, other = await start(), await start()
        chosen = model(server, strategy=strategy)
        if discover is not None:
            chosen["discoverAdapters"] = discover
        scene.configure(chosen, model(other, name="other"))
        await eventually(lambda: len(other.asked) >= 4 and set(server.asked) >= asked)
        assert set(server.asked) == asked

    async def test_of_two_models_is_read_once_at_the_shorter_interval(
        self, scene: Scene, server: Server
    ) -> None:
        scene.configure(
            model(server, busy=60, idle=60),
            model(server, name="other", strategy="PrefixHash", discoverAdapters=True),
        )
        await eventually(lambda: server.count(MODELS) >= 4)
        # Each path has its own times: one may be about to be read.
        assert abs(server.count(METRICS) - server.count(MODELS)) <= 1
        assert server.connections == 1

    async def test_removed_one_is_not_read_and_its_readings_are_forgotten(
        self, scene: Scene, start: Start
    ) -> None:
        stays, leaves = await start(), await start()
        scene.configure(model(stays, leaves))
        await eventually(lambda: scene.has_read(stays, leaves))
        scene.configure(model(stays))
        await eventually(lambda: leaves.open == 0)
        assert scene.reading(leaves.address) is None
        before, then = len(leaves.asked), len(stays.asked)
        await eventually(lambda: len(stays.asked) > then + 2)
        assert len(leaves.asked) == before

    async def test_removed_one_leaves_no_reference_cycles(self, scene: Scene, start: Start) -> None:
        stays, leaves = await start(), await start()
        scene.configure(model(stays, leaves))
        await eventually(lambda: scene.has_read(stays, leaves))
        followed = weakref.ref(scene.scraper._endpoints[leaves.address])
        gc.disable()
        try:
            scene.configure(model(stays))
            await eventually(lambda: followed() is None)
        finally:
            gc.enable()

    async def test_can_be_removed_during_a_reading(self, scene: Scene, server: Server) -> None:
        server.always(hangs)
        scene.configure(model(server))
        await eventually(lambda: server.asked != [])
        scene.configure(model("127.0.0.1:1", strategy="PrefixHash"))
        await eventually(lambda: server.open == 0)
        server.always(answer(BASE.encode()))
        scene.configure(model(server))
        await eventually(lambda: scene.has_read(server))

    async def test_new_strategy_changes_the_readings(self, scene: Scene, server: Server) -> None:
        scene.configure(model(server, strategy="PrefixHash", discoverAdapters=True, idle=60))
        await eventually(lambda: server.asked == [MODELS])
        scene.configure(model(server))
        await eventually(lambda: server.count(METRICS) >= 2 and server.count(MODELS) >= 2)

    async def test_idle_one_is_read_at_the_idle_interval(self, scene: Scene, start: Start) -> None:
        idle, other = await start(), await start()
        idle.answers[METRICS] = answer(BASE.replace("3.0", "0.0").replace("2.0", "0.0").encode())
        scene.configure(model(idle, idle=60), model(other, name="other"))
        await eventually(lambda: other.count(METRICS) > 5)
        assert idle.asked == [METRICS, MODELS]

    async def test_busy_one_is_read_at_the_busy_interval(
        self, scene: Scene, server: Server
    ) -> None:
        scene.configure(model(server, idle=60))
        await eventually(lambda: server.count(METRICS) > 3)
        assert server.count(MODELS) == 1, "adapters do not change with the load"

    async def test_idle_one_is_read_soon_after_a_request(
        self, scene: Scene, server: Server
    ) -> None:
        server.answers[METRICS] = answer(BASE.replace("3.0", "0.0").replace("2.0", "0.0").encode())
        scene.configure(model(server, idle=60))
        await eventually(lambda: scene.has_read(server))
        lease = scene.router.fleet.ledger.acquire("base", Endpoint(server.address, ""))
        await eventually(lambda: server.count(METRICS) > 3)
        lease.release()


async def hangs(writer: asyncio.StreamWriter) -> None:
    """Send nothing until the client closes."""
    while not writer.transport.is_closing():
        await asyncio.sleep(0.005)


def sends(*pieces: bytes, then: Behave | None = None) -> Behave:
    async def behave(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if then is not None:
            await then(writer)

    return behave


async def closes(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def resets(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def until_closed(piece: bytes) -> Behave:
    async def behave(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(piece)
            await writer.drain()

    return behave


HEAD = b"HTTP/1.1 200 OK\r\n"
METRICS_TEXT = BASE.encode()

BAD: dict[str, tuple[Behave, Result]] = {
    "hangs": (hangs, Result.TIMEOUT),
    "hangs in the headers": (sends(HEAD, then=hangs), Result.TIMEOUT),
    "hangs in the body": (sends(answer(METRICS_TEXT)[:-9], then=hangs), Result.TIMEOUT),
    "length too large": (
        sends(HEAD + b"content-length: 9999\r\n\r\n" + METRICS_TEXT, then=closes),
        Result.UNREACHABLE,
    ),
    "length too small": (
        sends(HEAD + b"content-length: 9\r\n\r\n" + METRICS_TEXT),
        Result.GARBLED,
    ),
    "length of 100 MB": (
        sends(HEAD + b"content-length: 100000000\r\n\r\n", then=until_closed(b"x" * 65_536)),
        Result.TOO_LARGE,
    ),
    "sends without end": (
        sends(HEAD + b"\r\n", then=until_closed(b"# " + b"x" * 65_536 + b"\n")),
        Result.TOO_LARGE,
    ),
    "sends chunks without end": (
        sends(
            HEAD + b"transfer-encoding: chunked\r\n\r\n", then=until_closed(b"3\r\nabc\r\n" * 999)
        ),
        Result.TOO_LARGE,
    ),
    "sends headers without end": (sends(HEAD, then=until_closed(b"x: y\r\n" * 99)), Result.GARBLED),
    "sends an endless header": (sends(HEAD, then=until_closed(b"x" * 999)), Result.GARBLED),
    "sends garbage": (until_closed(b"\0\xff garbage" * 999), Result.GARBLED),
    "sends another text": (sends(answer(b"<html></html>\n")), Result.GARBLED),
    "sends nothing": (sends(answer(b"")), Result.GARBLED),
    "compresses": (
        sends(answer(gzip.compress(METRICS_TEXT), "200 OK", "content-encoding: gzip")),
        Result.GARBLED,
    ),
    "closes": (closes, Result.UNREACHABLE),
    "resets": (resets, Result.UNREACHABLE),
    "resets in the body": (sends(answer(METRICS_TEXT)[:-9], then=resets), Result.UNREACHABLE),
    "redirects": (sends(answer(b"", "302 Found", "location: /metrics")), Result.STATUS),
    "fails": (sends(answer(b"Internal Server Error", "500 Oops")), Result.STATUS),
    "speaks HTTP/1.0 and closes too early": (
        sends(answer(METRICS_TEXT).replace(b"1.1", b"1.0")[:-9], then=closes),
        Result.UNREACHABLE,
    ),
}


class TestBrokenEndpoint:
    @pytest.mark.parametrize("kind", BAD)
    async def test_counts_by_result_and_is_read_after_recovery(
        self,
        scene: Scene,
        start: Start,
        kind: str,
        monkeypatch: pytest.MonkeyPatch,
        request: pytest.FixtureRequest,
    ) -> None:
        monkeypatch.setattr(endpoint, "TOO_LARGE_SECONDS", 0.05)
        bad, good = await start(), await start()
        behave, result = BAD[kind]
        if result is Result.TIMEOUT:
            request.getfixturevalue("impatient")
        bad.always(behave)
        scene.configure(model(bad, good))
        await eventually(lambda: scene.results[METRICS, result] >= 2)
        assert scene.reading(bad.address) is None
        seen = len(good.asked)
        await eventually(lambda: len(good.asked) > seen + 1)
        bad.always(answer(METRICS_TEXT))
        await eventually(lambda: scene.has_read(bad))
        assert {of for (path, of) in scene.results if path == METRICS} == {"ok", result}

    async def test_response_of_100_mb_is_not_read_completely(
        self, scene: Scene, server: Server
    ) -> None:
        sent = 0

        async def floods(writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(HEAD + b"\r\n")
            while sent < 100_000_000:
                writer.write(b"#" * 65_535 + b"\n")
                await writer.drain()
                sent += 65_536

        server.answers[METRICS] = floods
        scene.configure(model(server, discoverAdapters=False))
        await eventually(lambda: server.open == 0 and sent > 0)
        # Including the buffers of the kernel and of asyncio on both sides.
        assert sent < 8 * 2**20
        assert scene.results == {(METRICS, "too_large"): 1}

    @pytest.mark.usefixtures("impatient")
    async def test_connection_attempt_has_a_time_limit(
        self, scene: Scene, deaf: str, server: Server
    ) -> None:
        scene.configure(model(deaf, server))
        await eventually(lambda: scene.results[METRICS, "timeout"] >= 2 and scene.has_read(server))

    async def test_absent_one_is_retried_until_it_starts(
        self, scene: Scene, server: Server
    ) -> None:
        await server.stop()
        scene.configure(model(server))
        await eventually(lambda: scene.results[METRICS, "unreachable"] >= 3)
        await server.start(int(server.address.rpartition(":")[2]))
        await eventually(lambda: scene.has_read(server))

    @pytest.mark.usefixtures("impatient")
    async def test_with_hanging_metrics_still_lists_adapters(
        self, scene: Scene, server: Server
    ) -> None:
        server.answers[METRICS] = hangs
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.has("law")
        await eventually(lambda: known(scene, "law") and not known(scene, "sql"))

    async def test_beginning_of_long_metrics_is_used(self, scene: Scene, server: Server) -> None:
        more = b'vllm:lora_requests_info{running_lora_adapters="a"} 1.0\n' * 30_000
        server.answers[METRICS] = sends(answer(BASE.encode() + more))
        scene.configure(model(server))
        await eventually(lambda: scene.has_read(server))
        assert scene.results[METRICS, Result.TOO_LARGE] == 0

    async def test_http_1_0_is_read(self, scene: Scene, server: Server) -> None:
        text = b"HTTP/1.0 200 OK\r\n\r\n" + METRICS_TEXT
        server.answers[METRICS] = sends(text, then=closes)
        scene.configure(model(server))
        await eventually(lambda: scene.results[METRICS, "ok"] >= 3)

    async def test_unrequested_bytes_close_the_connection(
        self, scene: Scene, server: Server
    ) -> None:
        async def says_more_later(writer: asyncio.StreamWriter) -> None:
            writer.write(answer(METRICS_TEXT))
            await writer.drain()
            answered = monotonic()
            await asyncio.sleep(0.01)
            # Later bytes could be taken for the response to the next request.
            if monotonic() < answered + 0.03:
                writer.write(answer(b"vllm:num_requests_waiting 99.0\n"))

        server.answers[METRICS] = says_more_later
        scene.configure(model(server, discoverAdapters=False))
        await eventually(lambda: scene.results[METRICS, "ok"] >= 3 and server.connections >= 3)
        reading = scene.reading(server.address)
        assert reading is not None
        assert reading.load.waiting == 2.0

    async def test_each_kind_of_failure_is_logged_once(
        self, scene: Scene, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.always(answer(b"", "503 Busy"))
        scene.configure(model(server))
        await eventually(lambda: scene.results.total() >= 6)
        logged = [record.__dict__["fields"] for record in caplog.records]
        assert [(t["endpoint"], t["path"], t["result"], str(t["why"])) for t in logged] == [
            (server.address, path, "status", "status 503") for path in (METRICS, MODELS)
        ]

    async def test_many_failures_do_not_flood_the_log(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.configure(model(*(f"127.0.0.{i}:1" for i in range(2, 42))))
        await eventually(lambda: scene.results[METRICS, "unreachable"] >= 40)
        assert len(caplog.records) == 11
        assert "more endpoints" in caplog.records[-1].message

    async def test_is_read_again_after_an_unexpected_exception(
        self, scene: Scene, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_: bytes) -> None:
            raise RecursionError

        monkeypatch.setattr(endpoint, "read_report", broken)
        scene.configure(model(server))
        await eventually(lambda: scene.results[METRICS, "garbled"] >= 2)


@pytest.fixture
def deaf() -> Iterator[str]:
    """Return the address of a socket whose queue is full, so that the kernel does not respond."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        for one in waiting:
            one.close()


class TestAdapter:
    async def test_is_routable_while_it_is_listed(
        self, scene: Scene, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        one, two = await start(), await start()
        scene.configure(model(one, two, adapters=["configured"]))
        await eventually(lambda: scene.has_read(one, two))
        assert not known(scene, "sql")

        one.has("sql")
        await eventually(lambda: known(scene, "sql"))
        resolved = scene.router.resolve("sql", None, {})
        assert scene.router.decide(resolved).address == one.address
        assert scene.router.catalog.found == {one.address: {"sql"}}

        one.has()
        two.has("law")
        await eventually(lambda: known(scene, "law") and not known(scene, "sql"))
        assert scene.adapters == {"base": {"configured", "law"}}
        logged = [r.__dict__["fields"] for r in caplog.records if r.message == "adapters changed"]
        assert {fields["came"] for fields in logged} >= {"sql", "law"}
        assert "sql" in {fields["left"] for fields in logged}

    async def test_is_not_discovered_unless_a_model_wants_it(
        self, scene: Scene, server: Server
    ) -> None:
        server.answers[METRICS] = answer(in_use("sql"))
        scene.configure(model(server, discoverAdapters=False))
        await eventually(lambda: server.count(METRICS) >= 3)
        assert scene.router.catalog.found == {}

    @pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found"])
    async def test_in_use_counts_without_a_list(
        self, scene: Scene, server: Server, status: str
    ) -> None:
        server.answers = {METRICS: answer(in_use("sql")), MODELS: answer(b"", status)}
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.answers[METRICS] = answer(in_use("law"))
        await eventually(lambda: known(scene, "law"))
        assert known(scene, "sql"), "it may still be there"

    async def test_in_use_but_not_listed_is_removed(self, scene: Scene, server: Server) -> None:
        server.answers[METRICS] = answer(in_use("sql"))
        server.has("sql", "law")
        scene.configure(model(server))
        await eventually(lambda: scene.adapters == {"base": {"sql", "law"}})
        server.has("law")
        await eventually(lambda: scene.adapters == {"base": {"law"}})

    async def test_stays_while_the_list_fails_temporarily(
        self, scene: Scene, server: Server
    ) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.answers[MODELS] = answer(b"busy", "503 Service Unavailable")
        await eventually(lambda: scene.results[MODELS, Result.STATUS] >= 2)
        assert known(scene, "sql")
        server.answers[MODELS] = answer(b"no key", "401 Unauthorized")
        await eventually(lambda: not known(scene, "sql"))

    async def test_is_removed_when_another_pod_has_the_address(
        self, scene: Scene, server: Server
    ) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql") and scene.has_read(server))
        server.always(hangs)
        served = scene.router.catalog.models["base"]
        moved = served.at([Endpoint(server.address, "ns/another")], {})
        scene.router.publish(Catalog.of([moved], {}, scene.router.catalog.found))
        assert scene.reading(server.address) is None
        await eventually(lambda: not known(scene, "sql"))

    @pytest.mark.usefixtures("impatient")
    async def test_stays_while_the_list_is_unreachable(self, scene: Scene, server: Server) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.answers[MODELS] = hangs
        await eventually(lambda: scene.results[MODELS, "timeout"] >= 2)
        assert known(scene, "sql")

    async def test_is_removed_with_its_endpoint(self, scene: Scene, start: Start) -> None:
        stays, leaves = await start(), await start()
        leaves.has("sql")
        scene.configure(model(stays, leaves))
        await eventually(lambda: known(scene, "sql"))
        scene.configure(model(stays))
        assert not known(scene, "sql")
        await eventually(lambda: scene.router.catalog.found == {})
        scene.configure(model(stays, leaves))
        await eventually(lambda: known(scene, "sql"))

    async def test_is_removed_when_discovery_is_turned_off(
        self, scene: Scene, server: Server
    ) -> None:
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        scene.configure(model(server, discoverAdapters=False))
        assert not known(scene, "sql")
        await eventually(lambda: scene.router.catalog.found == {})

    async def test_many_adapters_do_not_flood_the_log(
        self, scene: Scene, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        server.answers[MODELS] = answer(model_list(*(f"adapter-{i:03}" for i in range(100))))
        scene.configure(model(server))
        await eventually(lambda: known(scene, "adapter-099"))
        (logged,) = (
            r.__dict__["fields"] for r in caplog.records if r.message == "adapters changed"
        )
        assert logged["came"].endswith("adapter-009 and 90 more")


class TestContextLength:
    def length(self, scene: Scene) -> int | None:
        snapshot = scene.router.catalog.models["base"].snapshot
        return scene.router.fleet.context_lengths.of(snapshot)

    def says(self, server: Server, tokens: object) -> None:
        card = {"id": "base", "parent": None, "max_model_len": tokens}
        server.answers[MODELS] = answer(json.dumps({"data": [card]}).encode())

    async def test_is_read_with_the_adapters(self, scene: Scene, start: Start) -> None:
        one, two = await start(), await start()
        self.says(one, 8192)
        self.says(two, 4096)
        scene.configure(model(one, two))
        await eventually(lambda: self.length(scene) == 4096)
        self.says(two, None)
        await eventually(lambda: self.length(scene) == 8192)

    async def test_is_removed_with_its_endpoint(self, scene: Scene, start: Start) -> None:
        one, two = await start(), await start()
        self.says(two, 4096)
        scene.configure(model(one, two))
        await eventually(lambda: self.length(scene) == 4096)
        scene.configure(model(one))
        scene.configure(model(one, two, discoverAdapters=False))
        assert self.length(scene) is None

    async def test_is_removed_when_the_list_is_denied(self, scene: Scene, server: Server) -> None:
        self.says(server, 4096)
        scene.configure(model(server))
        await eventually(lambda: self.length(scene) == 4096)
        server.answers[MODELS] = answer(b"{}", "401 Unauthorized")
        await eventually(lambda: self.length(scene) is None)


class TestClose:
    async def test_leaves_nothing_running(self, start: Start) -> None:
        healthy, hanging = await start(), await start()
        hanging.always(hangs)
        scene = Scene()
        scene.configure(model(healthy, hanging, "127.0.0.1:1"))
        await eventually(lambda: scene.has_read(healthy) and hanging.asked != [])
        running = asyncio.all_tasks()
        await scene.scraper.close()
        assert healthy.open == 0 or await _closes(healthy)
        ours = [task for task in running if "ScrapedEndpoint" in repr(task)]
        assert len(ours) == 3
        assert all(task.done() for task in ours)
        asked = len(healthy.asked)
        await asyncio.sleep(0.1)
        assert len(healthy.asked) == asked

    async def test_works_before_the_first_reading(self) -> None:
        await Scene().scraper.close()


async def _closes(server: Server) -> bool:
    await eventually(lambda: server.open == 0)
    return True


class TestSettle:
    async def test_waits_until_adapters_are_known(self, scene: Scene, start: Start) -> None:
        async def after_a_while(writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.1)
            writer.write(answer(model_list("sql")))

        slow, other = await start(), await start()
        slow.answers[MODELS] = after_a_while
        scene.configure(model(slow, other))
        await scene.scraper.settle(5)
        assert known(scene, "sql")

    async def test_does_not_wait_for_absent_endpoints(self, scene: Scene, server: Server) -> None:
        server.has("sql")
        scene.configure(model(server, "127.0.0.1:1"))
        async with asyncio.timeout(3):
            await scene.scraper.settle(5)
        assert known(scene, "sql")

    async def test_waits_for_a_limited_time(self, scene: Scene, server: Server) -> None:
        server.always(hangs)
        scene.configure(model(server))
        async with asyncio.timeout(3):
            await scene.scraper.settle(0.1)

    async def test_returns_at_once_without_endpoints_to_read(
        self, scene: Scene, server: Server
    ) -> None:
        scene.configure(model(server, strategy="PrefixHash"))
        await scene.scraper.settle(0)
