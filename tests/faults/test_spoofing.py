"""Clients cannot choose an address: canaries on loopback receive no connection."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress

import pytest
from multidict import CIMultiDict

from tests.e2e.scene import CONFIGS, Json, Launch, Options, Scene, chat
from tests.extent import FULL, extent
from tests.faults.canary import Canary
from tests.faults.report import Report
from tests.faults.streams import CLIENTS, PACE, WHOLE, Streams, streaming

MESSAGE_TIMEOUT = 2
"""Seconds that a request waits for a sidecar that hangs, in every configuration."""
STREAMS = extent(20, full=CLIENTS)
ARGUMENTS = (*PACE, "--time-scale", str(extent(4, full=1)), "--max-model-len", "100000")
"""Fewer streams get a faster time scale, so the load is the same."""

NAMES = [
    "x-target-endpoint",
    "X-Target-Endpoint",
    "X-TARGET-ENDPOINT-FALLBACK",
    "x-target-endpoint-fallback",
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-envoy-original-dst-host",
    "x-envoy-original-path",
    "x-forwarded-host",
]
LINK_LOCAL = "127.169.254.1"
"""A loopback address for 169.254.169.254, on which a test cannot listen. No replica has it."""


def spellings(address: str) -> list[str]:
    """Return spellings that a lenient parser may read as this address."""
    host, _, port = address.rpartition(":")
    return [
        address,
        f" {address} ",
        f"{address},{address}",
        f"[::ffff:{host}]:{port}",
        f"http://{address}",
        f"{address}\t",
        f"\u00e9{address}",
    ]


def requests_naming(address: str) -> Iterator[tuple[Json | bytes, CIMultiDict[str]]]:
    """Yield the body and headers of each request that names the address."""
    for name in NAMES:
        for value in spellings(address):
            for body in (chat("hello"), b"not json"):
                yield body, CIMultiDict({name: value})
        yield chat("x" * 100_000), CIMultiDict({name: address})
        yield chat("hello"), CIMultiDict([(name, address), (name.upper(), address)])


async def attack(scene: Scene, *addresses: str) -> Counter[int]:
    """Send all requests that name the addresses, at once. Return the statuses of the responses."""
    sent = [
        scene.send(body, headers=headers)
        for address in addresses
        for body, headers in requests_naming(address)
    ]
    raw = [attack_with_raw_requests(scene, address) for address in addresses]
    replies, _ = await asyncio.gather(asyncio.gather(*sent), asyncio.gather(*raw))
    return Counter(reply.status for reply in replies)


async def attack_with_raw_requests(scene: Scene, address: str) -> None:
    """Send requests that no client library sends, and ignore Envoy's responses."""
    body = b'{"model": "llama", "messages": [{"role": "user", "content": "a"}]}'
    length = b"content-length: %d\r\n" % len(body)
    target = address.encode()
    usual = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    chunked = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    requests = [
        (usual + line + length, body)
        for line in (
            b"x-target-endpoint:" + target + b"\r\n",
            b"x-target-endpoint : " + target + b"\r\n",
            b"x-target-endpoint: \r\n " + target + b"\r\n",
            b"x-target-endpoint: " + target + b"\x00\r\n",
            b"x_target_endpoint: " + target + b"\r\n",
            b"connection: x-target-endpoint\r\nx-target-endpoint: " + target + b"\r\n",
            b"transfer-encoding: chunked\r\ntrailer: x-target-endpoint\r\n",
        )
    ]
    requests += [
        (b"POST http://" + target + b"/v1/chat/completions HTTP/1.1\r\n" + length, body),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: " + target + b"\r\n" + length, body),
        (b"CONNECT " + target + b" HTTP/1.1\r\nhost: x\r\n", b""),
        (
            usual + b"transfer-encoding: chunked\r\n",
            chunked + b"x-target-endpoint: " + target + b"\r\n\r\n",
        ),
    ]
    await asyncio.gather(*(_raw(scene, head, body) for head, body in requests))


async def _raw(scene: Scene, head: bytes, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    writer.write(head + b"connection: close\r\n\r\n" + body)
    with suppress(TimeoutError, OSError):
        # A little longer than Envoy waits for a sidecar that hangs.
        await asyncio.wait_for(reader.read(), MESSAGE_TIMEOUT + 1)
    writer.transport.abort()


WAYS = (
    f"{len(NAMES)} headers, each in {len(spellings('a:1'))} spellings, doubled, in mixed case, "
    "and 11 requests that no library sends"
)
FAIL_CLOSED = "fail-closed.yaml"
"""The configuration that refuses all requests while the sidecar is down."""


@pytest.mark.parametrize("config", CONFIGS)
async def test_header_spoof(launch: Launch, config: str, report: Report) -> None:
    """Envoy never connects to an address that a client names, with the sidecar up or down."""
    scene = await launch(Options(config=config, replica_arguments=ARGUMENTS))
    load_text = ", without streams" if config == FAIL_CLOSED else ""
    report.tried(f"{WAYS}; sidecar up, under {STREAMS} streams, then down{load_text}")
    async with Canary().listening() as near, Canary().listening(LINK_LOCAL) as far:
        async with AsyncExitStack() as load:
            streams = await load.enter_async_context(streaming(scene, STREAMS))
            up = await attack(scene, near.address, far.address)
            if config == FAIL_CLOSED:
                await load.aclose()
            await scene.sidecar.kill()
            down = await attack(scene, near.address, far.address)
        report_losses(report, [near, far], streams, up + down)
        assert near.connections == far.connections == 0
    assert 200 in up
    assert up.keys() <= {200, 400, 503}
    assert down.keys() <= ({503, 400} if config == FAIL_CLOSED else {200, 400})
    assert streams.outcomes.keys() == {WHOLE}


@pytest.mark.parametrize("config", CONFIGS if FULL else CONFIGS[:1])
async def test_header_spoof_frozen(launch: Launch, config: str, report: Report) -> None:
    """Envoy never connects to an address that a client names while the sidecar hangs."""
    scene = await launch(Options(config=config, replica_arguments=ARGUMENTS))
    load_text = ", without streams" if config == FAIL_CLOSED else f" under {STREAMS} streams"
    report.tried(f"{WAYS}, with the sidecar frozen{load_text}")
    async with Canary().listening() as near, Canary().listening(LINK_LOCAL) as far:
        async with streaming(scene, 0 if config == FAIL_CLOSED else STREAMS) as streams:
            scene.sidecar.signal(signal.SIGSTOP)
            statuses = await attack(scene, near.address, far.address)
            scene.sidecar.signal(signal.SIGCONT)
        report_losses(report, [near, far], streams, statuses)
        assert near.connections == far.connections == 0
    assert statuses.keys() == ({504} if config == FAIL_CLOSED else {200, 400})
    assert streams.outcomes.keys() <= {WHOLE}
    assert config == FAIL_CLOSED or streams.slowest_begin >= MESSAGE_TIMEOUT
    await scene.access_log(statuses.total() + streams.whole)


def report_losses(
    report: Report, canaries: list[Canary], streams: Streams, statuses: Counter[int]
) -> None:
    """Report the lost streams and the connections to the canaries."""
    report.lost(
        failed=streams.failed,
        cut=streams.cut,
        canary_connections=sum(canary.connections for canary in canaries),
        what=f"of {streams.whole} streams and {statuses.total()} requests that name one",
    )
