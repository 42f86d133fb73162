"""The endpoint picker protocol: bodies pass through the sidecar unchanged."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from extproc.lab.stack.processes import free_port, until
from tests.e2e.scene import (
    CHAT,
    HttpResponse,
    Json,
    Launch,
    Options,
    Scene,
    chat,
    envoy_minor,
    events,
    ext_proc_filter,
    processing_modes,
)
from tests.extent import PATIENCE, limit

CONFIG = "endpoint-picker.yaml"
DESTINATION = "x-gateway-destination-endpoint"
FAST = ("--time-scale", "200", "--kv-tokens", "4000000", "--max-model-len", "4000000")
SLOW = ("--time-scale", "1")
# The stand-in processes no tokens on this path, so that long requests are cheap.
PLAIN = "/v1/embeddings"

SET_METADATA = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config"


def picker(**others: Any) -> Options:
    return Options(**{"config": CONFIG, "replica_arguments": FAST, **others})


def sized(size: int) -> bytes:
    """Return a body slightly larger than this."""
    return json.dumps({"model": "llama", "input": "x" * size}).encode()


def assert_whole(reply: HttpResponse, sent: bytes) -> None:
    assert reply.status == 200
    assert reply.headers["x-stand-in-body-bytes"] == str(len(sent))
    assert reply.headers["x-stand-in-body-md5"] == hashlib.md5(sent).hexdigest()


async def upload(
    scene: Scene, parts: Iterable[bytes], *, pause: float = 0, end: bytes = b"0\r\n\r\n"
) -> str:
    """Send a body in these chunks and return the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    writer.write(f"POST {PLAIN} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
    for part in parts:
        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        await asyncio.sleep(pause)
    writer.write(end)
    response = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    writer.close()
    return response.decode()


def in_parts(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def route(config: Json) -> Json:
    listener = config["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    found: Json = manager["route_config"]["virtual_hosts"][0]["routes"][-1]
    return found


def manager(config: Json) -> Json:
    listener = config["static_resources"]["listeners"][0]
    found: Json = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


async def assert_no_protocol_errors(scene: Scene) -> None:
    """Assert that Envoy accepted every message of the sidecar."""
    stats = await scene.envoy.stats("ext_proc")
    for counter in ("spurious_msgs_received", "rejected_header_mutations", "streams_failed"):
        assert stats[f"http.llm.ext_proc.{counter}"] == 0, stats


class TestBodies:
    async def test_of_every_size_arrive_unchanged(self, launch: Launch) -> None:
        scene = await launch(picker())
        for size in (1, 10, 30_000, 33_000, 62_000, 66_000, 131_072, 700_000, 10_000_000):
            body = sized(size)
            assert_whole(await scene.send(body, path=PLAIN), body)
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)

    async def test_of_every_size_reach_the_home_endpoint(self, launch: Launch) -> None:
        scene = await launch(picker())
        home = (await scene.send(chat("x" * 200))).replica
        for size in (10, 40_000, 700_000):
            body = json.dumps(chat("x" * 200 + "y" * size)).encode()
            reply = await scene.send(body)
            assert_whole(reply, body)
            assert reply.replica == home

    async def test_two_hundred_at_once_arrive_complete(self, launch: Launch) -> None:
        scene = await launch(picker())
        bodies = [sized(997 * i) for i in range(200)]
        replies = await asyncio.gather(*(scene.send(body, path=PLAIN) for body in bodies))
        for body, reply in zip(bodies, replies, strict=True):
            assert_whole(reply, body)
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)

    async def test_in_slow_and_fast_chunks_arrive_complete(self, launch: Launch) -> None:
        scene = await launch(picker())
        uploads = [
            (sized(100), 1, 0.002),
            (sized(30_000), 700, 0.002),
            (sized(200_000), 50_000, 0.005),
            (sized(200_000), 7_001, 0),
            (sized(1_000_000), 16_384, 0),
        ]
        responses = await asyncio.gather(
            *(upload(scene, in_parts(body, size), pause=pause) for body, size, pause in uploads)
        )
        for (body, _, _), response in zip(uploads, responses, strict=True):
            assert " 200 " in response
            assert hashlib.md5(body).hexdigest() in response
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)

    async def test_in_two_packets_arrive_complete(self, launch: Launch) -> None:
        """Verify that Envoy's two defects with BUFFERED_PARTIAL (docs/envoy.md) do not occur.

        The route has retries, and no limit keeps bodies from overflowing the buffer.
        """
        scene = await launch(picker())
        for size in (20_000, 33_000, 40_000, 64_000, 66_000, 100_000, 135_000, 200_000, 700_000):
            body = sized(size)
            for cut in (len(body) // 2, 20_000, 32_000, len(body) - 1):
                _, response = await in_two_parts(scene, body, cut)
                assert " 200 " in response, (size, cut, response)
                assert hashlib.md5(body).hexdigest() in response, (size, cut, response)
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)

    async def test_with_a_late_model_field_are_read_up_to_the_limit(self, launch: Launch) -> None:
        other = {"name": "other", "endpoints": ["127.0.0.1:9"]}
        scene = await launch(picker(more_models=[other]))
        late = json.dumps({"input": "x" * 60_000, "model": "llama"}).encode()
        assert_whole(await scene.send(late, path=PLAIN), late)
        too_late = json.dumps({"input": "x" * 70_000, "model": "llama"}).encode()
        refused = await scene.send(too_late, path=PLAIN)
        assert refused.status == 400
        assert "first 65536 bytes" in refused.error()["message"]
        named = await scene.send(too_late, path=PLAIN, headers={"x-model": "llama"})
        assert_whole(named, too_late)

    async def test_with_a_too_late_model_field_go_to_the_only_model(self, launch: Launch) -> None:
        scene = await launch(picker())
        too_late = json.dumps({"input": "x" * 70_000, "model": "llama"}).encode()
        assert_whole(await scene.send(too_late, path=PLAIN), too_late)

    async def test_do_not_accumulate_in_the_sidecar(self, launch: Launch) -> None:
        scene = await launch(picker())
        body = sized(10_000_000)
        assert_whole(await scene.send(body, path=PLAIN), body)
        before = peak_memory(scene.sidecar.pid)
        replies = await asyncio.gather(*(scene.send(body, path=PLAIN) for _ in range(20)))
        assert {reply.status for reply in replies} == {200}
        # Of the 200 MB that passed, the transport buffers a quarter of a megabyte per request.
        assert peak_memory(scene.sidecar.pid) - before < 60_000_000


async def in_two_parts(
    scene: Scene, body: bytes, cut: int, between: Callable[[], Any] | None = None
) -> tuple[float, str]:
    """Send a body with a pause; return the seconds after it, and the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    head = f"POST {PLAIN} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[:cut])
    await asyncio.sleep(0.02)
    if between is not None:
        await between()
    now = asyncio.get_running_loop().time
    started = now()
    writer.write(body[cut:])
    response = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    writer.close()
    return now() - started, response.decode()


def peak_memory(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1000


class TestRequestTrailers:
    """Trailers are rare, but HTTP/2 clients may send them."""

    END = b"0\r\nx-checksum: 1\r\n\r\n"

    @staticmethod
    def with_trailers(config: Json) -> None:
        manager(config)["http_protocol_options"] = {"enable_trailers": True}

    async def test_pass_with_the_complete_body(self, launch: Launch) -> None:
        def without_retry(config: Json) -> None:
            self.with_trailers(config)
            del route(config)["route"]["retry_policy"]

        scene = await launch(picker(change_config=without_retry))
        late = json.dumps({"input": "x" * 30_000, "model": "llama"}).encode()
        for body in (sized(10), sized(30_000), sized(300_000), late):
            for size in (len(body), 7_000):
                response = await upload(scene, in_parts(body, size), end=self.END)
                assert " 200 " in response
                assert hashlib.md5(body).hexdigest() in response
        assert " 400 " in await upload(scene, [], end=self.END)
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)


class TestResponse:
    async def test_streams_through_chunk_by_chunk(self, launch: Launch) -> None:
        scene = await launch(picker(replica_arguments=("--time-scale", "2")))
        async with scene.stream(chat("hello", tokens=20)) as response:
            assert response.content_type == "text/event-stream"
            now = asyncio.get_running_loop().time
            arrivals = [(now(), data) async for data in events(response)]
        assert arrivals[-1][1] == "[DONE]"
        texts = [
            json.loads(data)["choices"][0]["delta"].get("content") for _, data in arrivals[:-1]
        ]
        assert len([text for text in texts if text]) == 20
        # 20 tokens at 41 ms each, at twice the real speed, must not arrive in one piece.
        assert arrivals[-1][0] - arrivals[0][0] > 0.2
        # Envoy must not hold a token until the next one arrives.
        gaps = [later - earlier for (earlier, _), (later, _) in pairwise(arrivals)]
        assert sorted(gaps)[len(gaps) // 2] < 0.04
        await scene.agree_on_inflight(0)

    @pytest.mark.parametrize(
        "mode", ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"]
    )
    @pytest.mark.parametrize("config", ["envoy.yaml", CONFIG])
    async def test_passes_in_every_mode(self, launch: Launch, config: str, mode: str) -> None:
        def changed(document: Json) -> None:
            for modes in processing_modes(document):
                modes |= {"response_header_mode": "SEND", "response_body_mode": mode}

        scene = await launch(picker(config=config, change_config=changed))
        async with scene.stream(chat("hello", tokens=30)) as response:
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        body = sized(200_000)
        assert_whole(await scene.send(body, path=PLAIN), body)
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)

    async def test_sent_before_the_end_of_the_body_reaches_the_client(self, launch: Launch) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
            await asyncio.sleep(1)
            writer.close()

        async with upstream(refuse) as address:
            other = {"name": "other", "endpoints": [address]}
            scene = await launch(picker(more_models=[other], more_endpoints=[address]))
            body = json.dumps({"model": "other", "input": "x" * 100_000}).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
            head = f"POST {PLAIN} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body[:-1])
            assert b" 413 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            writer.close()
            await scene.agree_on_inflight(0)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def upstream(handler: Handler) -> AsyncIterator[str]:
    """Run a server with this handler and yield its address."""
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


class TestDestination:
    async def test_replaces_client_values_in_headers_and_metadata(self, launch: Launch) -> None:
        heads: list[str] = []

        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            await writer.drain()
            writer.close()

        async with upstream(respond) as one, upstream(respond) as two:
            other = {"name": "other", "endpoints": [one, two]}
            scene = await launch(picker(more_models=[other], more_endpoints=[one, two]))
            evil = {DESTINATION: "127.0.0.1:1", "x-target-endpoint": "127.0.0.1:1"}
            for _ in range(4):
                await scene.send(chat("hello", model="other"), headers=evil)
            log = await scene.access_log(4)
        assert len(heads) == 4
        for head, line in zip(heads, log, strict=True):
            sent = dict(part.split(": ") for part in head.split("\r\n")[1:] if part)
            first, second = line["destination"].split(",")
            assert {first, second} == {one, two}
            assert sent[DESTINATION] == line["destination"]
            assert first == sent["x-target-endpoint"] == line["upstream"]
            assert second == sent["x-target-endpoint-fallback"]
            assert line["decision"]["endpoint"] == first

    async def test_never_comes_from_the_client(self, launch: Launch) -> None:
        connections = 0

        async def canary(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            writer.close()

        async with upstream(canary) as address:
            scene = await launch(picker())
            for sidecar_is_up in (True, False):
                for name in (DESTINATION, DESTINATION.title(), "x-target-endpoint"):
                    for value in (address, f"{address},{address}"):
                        for body in (chat("hello"), b"not json", chat("x" * 100_000)):
                            reply = await scene.send(body, headers={name: value})
                            assert reply.status in ({200, 400} if sidecar_is_up else {503})
                if sidecar_is_up:
                    await scene.sidecar.kill()
            assert connections == 0


class TestSubset:
    """A gateway that allows only some of the endpoints."""

    @staticmethod
    def hint(value: Any) -> Callable[[Json], None]:
        def changed(document: Json) -> None:
            hint = {
                "metadata_namespace": "envoy.lb.subset_hint",
                "value": {"x-gateway-destination-endpoint-subset": value},
            }
            options = ext_proc_filter(document)["metadata_options"]
            options["forwarding_namespaces"] = {"untyped": ["envoy.lb.subset_hint"]}
            filters = manager(document)["http_filters"]
            typed = {"@type": SET_METADATA, "metadata": [hint]}
            filters.insert(0, {"name": "envoy.filters.http.set_metadata", "typed_config": typed})

        return changed

    @pytest.mark.parametrize("config", [CONFIG, "envoy.yaml"])
    @pytest.mark.parametrize("form", [list, ",".join])
    async def test_limits_the_choice(
        self, launch: Launch, config: str, form: Callable[[list[str]], Any]
    ) -> None:
        endpoints = [f"127.0.0.1:{free_port()}" for _ in range(2)]

        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            await writer.drain()
            writer.close()

        host, port = endpoints[0].split(":")
        async with await asyncio.start_server(respond, host, int(port)):
            scene = await launch(
                picker(
                    config=config,
                    more_endpoints=endpoints,
                    change_config=self.hint(form(["10.9.9.9:80", endpoints[0]])),
                )
            )
            replies = [await scene.send(chat(f"user {i}")) for i in range(10)]
            assert {reply.status for reply in replies} == {200}
            log = await scene.access_log(10)
            assert {line["upstream"] for line in log} == {endpoints[0]}
            await scene.agree_on_inflight(0)

    @pytest.mark.parametrize("config", [CONFIG, "envoy.yaml"])
    @pytest.mark.parametrize("value", [[], "", ["10.9.9.9:80"], "nonsense", 7])
    async def test_without_a_ready_endpoint_returns_503(
        self, launch: Launch, config: str, value: Any
    ) -> None:
        scene = await launch(picker(config=config, change_config=self.hint(value)))
        reply = await scene.send(chat("hello"))
        assert reply.status == 503
        assert reply.error()["code"] == "no_endpoints"
        assert reply.headers["retry-after"]

    async def test_may_name_addresses_without_ports(self, launch: Launch) -> None:
        scene = await launch(picker(change_config=self.hint("127.0.0.1")))
        replies = [await scene.send(chat(f"user {i}")) for i in range(20)]
        assert {reply.replica for reply in replies} == set(scene.replicas.addresses)


class TestEndpointThatRefuses:
    @staticmethod
    def served_as_metadata(config: Json) -> None:
        """Report the serving endpoint as metadata of the protocol only."""
        del ext_proc_filter(config)["response_attributes"]
        (replicas,) = (c for c in config["static_resources"]["clusters"] if c["name"] == "replicas")
        policy = replicas["load_balancing_policy"]["policies"][0]["typed_extension_config"]
        served = {"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]}
        policy["typed_config"]["selected_host_key"] = served

    @pytest.mark.parametrize("as_metadata", [False, True])
    async def test_is_replaced_by_the_second_and_the_count_follows(
        self, launch: Launch, as_metadata: bool, every_envoy: str
    ) -> None:
        if as_metadata and envoy_minor() < 38:
            pytest.skip("Envoy 1.37 does not report the serving endpoint")
        dead = f"127.0.0.1:{free_port()}"
        scene = await launch(
            picker(
                replicas=1,
                more_endpoints=[dead],
                strategy="RoundRobin",
                replica_arguments=SLOW,
                **({"change_config": self.served_as_metadata} if as_metadata else {}),
            )
        )
        async with AsyncExitStack() as cleanup:
            bodies = [chat(f"user {i}", tokens=30) for i in range(4)]
            streams = [await cleanup.enter_async_context(scene.stream(body)) for body in bodies]
            assert {stream.status for stream in streams} == {200}
            await scene.agree_on_inflight(4)
            for stream in streams:
                await stream.read()
        await scene.agree_on_inflight(0)
        log = await scene.access_log(4)
        assert sorted(line["attempts"] for line in log) == [1, 1, 2, 2]
        assert {line["upstream"] for line in log} == set(scene.replicas.addresses)

    async def test_is_replaced_and_the_body_stays_complete(
        self, launch: Launch, every_envoy: str
    ) -> None:
        dead = f"127.0.0.1:{free_port()}"
        scene = await launch(picker(replicas=1, more_endpoints=[dead], strategy="RoundRobin"))
        for size in (10, 31_000, 33_000, 66_000, 700_000, 3_000_000):
            body = sized(size)
            for _ in range(2):
                assert_whole(await scene.send(body, path=PLAIN), body)
        await scene.agree_on_inflight(0)


class TestInflightCounts:
    async def test_are_exact_when_clients_abort_in_every_phase(
        self, launch: Launch, every_envoy: str
    ) -> None:
        scene = await launch(picker(replica_arguments=SLOW))

        async def begun(body: bytes, length: int) -> asyncio.StreamWriter:
            _, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            return writer

        whole = json.dumps(chat("x" * 100_000, tokens=200)).encode()
        held = await begun(whole[:20], len(whole))
        passing = await begun(whole[:80_000], len(whole))  # 64 KiB are enough for a decision
        await until_inflight(scene, 1)
        short = json.dumps(chat("x" * 5000, tokens=200)).encode()
        waiting = await begun(short, len(short))
        async with scene.stream(chat("hello", tokens=200)) as answered:
            await answered.content.readline()
            await until_inflight(scene, 3)
            held.close()
            passing.close()
            await scene.agree_on_inflight(2)
            waiting.close()
            await scene.agree_on_inflight(1)
            answered.close()
            await scene.agree_on_inflight(0)

        async def counted() -> bool:
            _, metrics = await scene.sidecar.get("/metrics")
            return 'outcome="aborted",strategy="none"} 1.0' in metrics

        await until(counted, PATIENCE, "the incomplete request to be counted")

    async def test_are_exact_while_many_requests_run_and_after_they_end(
        self, launch: Launch, every_envoy: str
    ) -> None:
        scene = await launch(picker(replica_arguments=SLOW))
        async with AsyncExitStack() as cleanup:
            bodies = [chat(f"user {i}", tokens=30) for i in range(100)]
            streams = await asyncio.gather(
                *(cleanup.enter_async_context(scene.stream(body)) for body in bodies)
            )
            await scene.agree_on_inflight(100)
            for stream in streams:
                assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        await scene.agree_on_inflight(0)
        await assert_no_protocol_errors(scene)

    async def test_are_exact_when_the_upstream_resets(
        self, launch: Launch, every_envoy: str
    ) -> None:
        scene = await launch(picker(replica_arguments=SLOW))
        async with AsyncExitStack() as cleanup:
            bodies = [chat(f"user {i}", tokens=200) for i in range(6)]
            streams = [await cleanup.enter_async_context(scene.stream(body)) for body in bodies]
            await scene.agree_on_inflight(6)
            await scene.replicas.kill()
            for stream in streams:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.read()
        await until_inflight(scene, 0)


async def until_inflight(scene: Scene, count: int) -> None:
    """Wait for the sidecar's own count while the replicas have no matching one."""

    async def reached() -> bool:
        return sum((await scene.sidecar.inflight()).values()) == count

    await until(reached, PATIENCE, f"{count} requests in the ledger")


class TestRefusals:
    @pytest.mark.parametrize(
        ("path", "body", "status", "code"),
        [
            (CHAT, b"hello", 400, "invalid_request"),
            (CHAT, b'{"model": 7, "messages": []}', 400, "invalid_request"),
            (CHAT, b'{"model": "llama", "messages": [', 400, "invalid_request"),
            (CHAT, b"", 400, "invalid_request"),
            (CHAT, json.dumps(chat("x" * 300_000, model="gpt-9")).encode(), 404, "model_not_found"),
            ("/nowhere", b"{}", 404, "unknown_path"),
        ],
    )
    async def test_have_the_openai_shape(
        self, launch: Launch, path: str, body: bytes, status: int, code: str
    ) -> None:
        scene = await launch(picker())
        for _ in range(3):
            reply = await scene.send(body, path=path)
            assert (reply.status, reply.error()["code"]) == (status, code)
            assert reply.headers["content-type"] == "application/json"
        assert sum(entry["total"] for entry in (await scene.replicas.requests()).values()) == 0
        await scene.agree_on_inflight(0)

    async def test_do_not_wait_for_the_end_of_the_body(self, launch: Launch) -> None:
        scene = await launch(picker())
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
        writer.write(head.encode() + b'{"model": "gpt-9", ')
        assert b" 404 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        writer.close()

    async def test_do_not_affect_the_list_of_models(self, launch: Launch) -> None:
        scene = await launch(picker())
        reply = await scene.send(b"", method="GET", path="/v1/models")
        assert [entry["id"] for entry in reply.json()["data"]] == ["llama"]


class TestFailedSidecar:
    """A failed sidecar fails the requests in this mode, with any `failure_mode_allow`."""

    @pytest.mark.parametrize("allow", [False, True])
    async def test_ends_running_requests_when_it_dies(self, launch: Launch, allow: bool) -> None:
        def changed(config: Json) -> None:
            ext_proc_filter(config)["failure_mode_allow"] = allow

        scene = await launch(picker(change_config=changed, replica_arguments=SLOW))
        body = sized(200_000)
        for cut in (5, 100_000):
            _, head = await in_two_parts(scene, body, cut, scene.sidecar.kill)
            assert " 503 " in head
            await scene.sidecar.start()
        async with scene.stream(chat("hello", tokens=200)) as response:
            await response.content.readline()
            await scene.sidecar.kill()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        statuses = [(await scene.send(sized(size), path=PLAIN)).status for size in (10, 100_000)]
        assert statuses == [503, 503]
        await scene.sidecar.start()
        assert (await scene.send(chat("hello"))).status == 200

    @pytest.mark.timed
    async def test_is_disconnected_after_the_keepalive_timeout_when_it_hangs(
        self, launch: Launch
    ) -> None:
        scene = await launch(picker())
        assert (await scene.send(chat("hello"))).status == 200
        scene.sidecar.signal(signal.SIGSTOP)
        seconds, response = await in_two_parts(scene, sized(100), 0)
        scene.sidecar.signal(signal.SIGCONT)
        assert " 503 " in response
        # The 1 s and 4 s of connection_keepalive apply, not the 2 s of `message_timeout`.
        assert 3 < seconds < limit(8)
        assert (await scene.send(chat("hello"))).status == 200


async def test_gateway_connects_over_tls(launch: Launch, tmp_path: Path) -> None:
    """Use TLS without verification, as most gateways do for their endpoint picker."""
    issued = trustme.CA().issue_cert("extproc")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")

    def with_tls(config: Json) -> None:
        (cluster,) = (c for c in config["static_resources"]["clusters"] if c["name"] == "extproc")
        context = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": context},
        }

    arguments = ["--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key")]
    scene = await launch(picker(change_config=with_tls, sidecar_arguments=arguments))
    body = sized(100_000)
    assert_whole(await scene.send(body, path=PLAIN), body)
    await scene.agree_on_inflight(0)
