from __future__ import annotations

import asyncio
import gzip
import logging
import socket
from collections.abc import Iterator
from time import monotonic

import pytest

from extproc.adapters.vllm import endpoint
from extproc.adapters.vllm.readings import METRICS, MODELS, Result
from tests.adapters.documents import eventually
from tests.adapters.vllm.expositions import BASE
from tests.adapters.vllm.scraper.scenes import Start, closes, hangs, known
from tests.adapters.vllm.servers import Behave, Scene, Server, model, response


def sends(*pieces: bytes, then: Behave | None = None) -> Behave:
    async def behave(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if then is not None:
            await then(writer)

    return behave


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
    "hangs in the body": (sends(response(METRICS_TEXT)[:-9], then=hangs), Result.TIMEOUT),
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
    "sends another text": (sends(response(b"<html></html>\n")), Result.GARBLED),
    "sends nothing": (sends(response(b"")), Result.GARBLED),
    "compresses": (
        sends(response(gzip.compress(METRICS_TEXT), "200 OK", "content-encoding: gzip")),
        Result.GARBLED,
    ),
    "closes": (closes, Result.UNREACHABLE),
    "resets": (resets, Result.UNREACHABLE),
    "resets in the body": (
        sends(response(METRICS_TEXT)[:-9], then=resets),
        Result.UNREACHABLE,
    ),
    "redirects": (sends(response(b"", "302 Found", "location: /metrics")), Result.STATUS),
    "fails": (sends(response(b"Internal Server Error", "500 Oops")), Result.STATUS),
    "speaks HTTP/1.0 and closes too early": (
        sends(response(METRICS_TEXT).replace(b"1.1", b"1.0")[:-9], then=closes),
        Result.UNREACHABLE,
    ),
}


def of_the_scraper(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return its records. Threads of earlier tests may still log, such as those that send spans."""
    return [record for record in caplog.records if record.name == "extproc.signals"]


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
        bad.always(response(METRICS_TEXT))
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

        server.responses[METRICS] = floods
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
        server.responses[METRICS] = hangs
        server.has("sql")
        scene.configure(model(server))
        await eventually(lambda: known(scene, "sql"))
        server.has("law")
        await eventually(lambda: known(scene, "law") and not known(scene, "sql"))

    async def test_beginning_of_long_metrics_is_used(self, scene: Scene, server: Server) -> None:
        more = b'vllm:lora_requests_info{running_lora_adapters="a"} 1.0\n' * 30_000
        server.responses[METRICS] = sends(response(BASE.encode() + more))
        scene.configure(model(server))
        await eventually(lambda: scene.has_read(server))
        assert scene.results[METRICS, Result.TOO_LARGE] == 0

    async def test_http_1_0_is_read(self, scene: Scene, server: Server) -> None:
        text = b"HTTP/1.0 200 OK\r\n\r\n" + METRICS_TEXT
        server.responses[METRICS] = sends(text, then=closes)
        scene.configure(model(server))
        await eventually(lambda: scene.results[METRICS, "ok"] >= 3)

    async def test_unrequested_bytes_close_the_connection(
        self, scene: Scene, server: Server
    ) -> None:
        async def says_more_later(writer: asyncio.StreamWriter) -> None:
            writer.write(response(METRICS_TEXT))
            await writer.drain()
            answered = monotonic()
            await asyncio.sleep(0.01)
            # Later bytes could be taken for the response to the next request.
            if monotonic() < answered + 0.03:
                writer.write(response(b"vllm:num_requests_waiting 99.0\n"))

        server.responses[METRICS] = says_more_later
        scene.configure(model(server, discoverAdapters=False))
        await eventually(lambda: scene.results[METRICS, "ok"] >= 3 and server.connections >= 3)
        reading = scene.reading(server.address)
        assert reading is not None
        assert reading.load.waiting == 2.0

    async def test_each_kind_of_failure_is_logged_once(
        self, scene: Scene, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.always(response(b"", "503 Busy"))
        scene.configure(model(server))
        await eventually(lambda: scene.results.total() >= 6)
        logged = [record.__dict__["fields"] for record in of_the_scraper(caplog)]
        assert [(t["endpoint"], t["path"], t["result"], str(t["why"])) for t in logged] == [
            (server.address, path, "status", "status 503") for path in (METRICS, MODELS)
        ]

    async def test_many_failures_do_not_flood_the_log(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.configure(model(*(f"127.0.0.{i}:1" for i in range(2, 42))))
        await eventually(lambda: scene.results[METRICS, "unreachable"] >= 40)
        records = of_the_scraper(caplog)
        assert len(records) == 11
        assert "more endpoints" in records[-1].message

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
