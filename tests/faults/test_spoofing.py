"""No client ever chooses an address: canaries on loopback see no connection."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from extproc.lab.processes import until
from tests.e2e.scene import CHAT, CONFIGS, Launch, Options, Scene, chat
from tests.faults.canary import Canary
from tests.faults.report import Report

ARGUMENTS = ("--time-scale", "100", "--max-model-len", "100000", "--kv-tokens", "200000")

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
"""Stands for 169.254.169.254, on which a test cannot listen: loopback, too, and no replica's."""


def values(address: str) -> list[str]:
    """Ways to write an address that somebody might read as one."""
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


async def attack(scene: Scene, address: str) -> Counter[int]:
    """Every way to name the address; the statuses of the answers."""
    statuses = Counter[int]()
    for name in NAMES:
        for value in values(address):
            for body in (chat("hello"), b"not json"):
                statuses[(await scene.send(body, headers={name: value})).status] += 1
        statuses[(await scene.send(chat("x" * 100_000), headers={name: address})).status] += 1
        twice = [(name, address), (name.upper(), address)]
        async with scene.session.post(CHAT, json=chat("hello"), headers=twice) as response:
            statuses[response.status] += 1
    return statuses


async def attack_in_bytes(scene: Scene, address: str) -> None:
    """What no client library sends; what Envoy answers is its own affair."""
    body = b'{"model": "llama", "messages": [{"role": "user", "content": "a"}]}'
    length = b"content-length: %d\r\n" % len(body)
    to = address.encode()
    usual = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    chunked = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    requests = [
        (usual + line + length, body)
        for line in (
            b"x-target-endpoint:" + to + b"\r\n",
            b"x-target-endpoint : " + to + b"\r\n",
            b"x-target-endpoint: \r\n " + to + b"\r\n",
            b"x-target-endpoint: " + to + b"\x00\r\n",
            b"x_target_endpoint: " + to + b"\r\n",
            b"connection: x-target-endpoint\r\nx-target-endpoint: " + to + b"\r\n",
            b"transfer-encoding: chunked\r\ntrailer: x-target-endpoint\r\n",
        )
    ]
    requests += [
        (b"POST http://" + to + b"/v1/chat/completions HTTP/1.1\r\n" + length, body),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: " + to + b"\r\n" + length, body),
        (b"CONNECT " + to + b" HTTP/1.1\r\nhost: x\r\n", b""),
        (
            usual + b"transfer-encoding: chunked\r\n",
            chunked + b"x-target-endpoint: " + to + b"\r\n\r\n",
        ),
    ]
    await asyncio.gather(*(_raw(scene, head, body) for head, body in requests))


async def _raw(scene: Scene, head: bytes, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    writer.write(head + b"connection: close\r\n\r\n" + body)
    with suppress(TimeoutError, OSError):
        # As long as a sidecar that hangs is waited for, and a little longer.
        await asyncio.wait_for(reader.read(), 3)
    writer.transport.abort()


async def nothing(scene: Scene) -> None:
    """The sidecar is up."""


async def killed(scene: Scene) -> None:
    await scene.sidecar.kill()


async def frozen(scene: Scene) -> None:
    scene.sidecar.signal(signal.SIGSTOP)


@pytest.mark.parametrize("config", CONFIGS)
async def test_header_spoof(launch: Launch, config: str, report: Report) -> None:
    """No address that a client names is ever connected to, sidecar up or down."""
    scene = await launch(Options(config=config, replica_arguments=ARGUMENTS))
    report.tried(
        f"{len(NAMES)} headers, each written in {len(values('a:1'))} ways, doubled, in mixed case, "
        f"and 11 requests no library sends; sidecar up, then down"
    )
    states: list[Callable[[Scene], Awaitable[None]]] = [nothing, killed]
    seen = []
    async with Canary().listening() as near, Canary().listening(LINK_LOCAL) as far:
        for state in states:
            await state(scene)
            seen.append(await attack(scene, near.address) + await attack(scene, far.address))
            for canary in (near, far):
                await attack_in_bytes(scene, canary.address)
        report.lost(
            canary_connections=near.connections + far.connections,
            what=f"of {sum(map(Counter.total, seen))} requests",
        )
        assert near.connections == far.connections == 0
    up, down = seen
    assert up.keys() <= {200, 400, 503}
    assert down.keys() <= ({503, 400} if config == "fail-closed.yaml" else {200, 400})


async def test_header_spoof_frozen(launch: Launch, report: Report) -> None:
    """Nor while the sidecar hangs and requests take the fallback."""
    scene = await launch(Options(replica_arguments=ARGUMENTS))
    report.tried(f"{len(NAMES)} headers at once, with the sidecar frozen")
    async with Canary().listening() as canary:
        await frozen(scene)
        spoofed = (
            scene.send(chat(f"hello {i}"), headers={name: canary.address})
            for i, name in enumerate(NAMES)
        )
        replies = await asyncio.gather(*spoofed)
        await attack_in_bytes(scene, canary.address)
        scene.sidecar.signal(signal.SIGCONT)
        report.lost(canary_connections=canary.connections, what=f"of {len(replies)} requests")
        assert canary.connections == 0
    assert {reply.status for reply in replies} == {200}
    await until(lambda: len(scene.envoy.access_log()) >= len(NAMES), 5, "the log")
