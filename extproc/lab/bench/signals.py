"""The effect of reading endpoints' metrics on decisions.

Requests arrive one by one from another process at random times, as in production. A decision is
late if it waits for other work in the event loop. The same requests are decided without scrapes,
and during scrapes of 200 endpoints that respond well, hang, or send 100 MB.

Other processes on the same cores delay decisions more than that. So the figures are medians of the
percentiles of many short periods.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, process_time, sleep

from extproc.adapters.vllm.scraper import Scraper
from extproc.core.conversation.state_machine import Conversation
from extproc.core.fleet.fleet import Fleet
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import build
from extproc.edge.ext_proc.codec import decode, encode
from extproc.lab.bench.signal_ways import Way, fleets_of, spawn, ways

_REQUESTS_PER_SECOND = 1000.0
_STAMP = struct.Struct("d")

Messages = Sequence[tuple[bytes, bytes]]
"""The messages of each request: headers and body, as Envoy sends them."""


async def measure(messages: Messages, seconds: float) -> list[Way]:
    """Measure decisions in this process, each fleet for this number of seconds."""
    measured = ways()
    # Failed scrapes are not logged here.
    logging.getLogger("extproc.signals").setLevel(logging.ERROR)
    async with AsyncExitStack() as cleanup:
        directory = Path(cleanup.enter_context(TemporaryDirectory(prefix="extproc-bench-")))
        fleets = await fleets_of(directory, cleanup)
        receiving = cleanup.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receiving.bind(("127.0.0.1", 0))
        receiving.setblocking(False)
        port = str(receiving.getsockname()[1])
        spawn("bench.signals", ["--send-to", port], "sender", directory, cleanup)
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().sock_recv(receiving, _STAMP.size)
        for way in measured:
            await _run(way, fleets[way.manner], messages, receiving, seconds)
    return measured


async def _run(
    way: Way,
    addresses: Sequence[str],
    messages: Messages,
    receiving: socket.socket,
    seconds: float,
) -> None:
    rng, fleet = Random(1), Fleet(monotonic)
    router = Router(fleet, rng=rng)
    scraper = Scraper(fleet, router.publish, way, rng)
    router.subscribe(scraper.set_models)
    served_by = [f"10.0.0.{i + 1}:8000" for i in range(8)]
    spec = ModelsSpec.model_validate(way.document(addresses, served_by))
    router.publish(revise(Catalog(), spec.models, lambda one: build(one, rng, fleet.signals)))
    await asyncio.sleep(min(way.settle_seconds(), 2 * seconds))
    decide = _decider(router, messages, rng)
    _drain(receiving)
    way.readings.clear()
    began, cpu = perf_counter(), process_time()
    loop = asyncio.get_running_loop()
    loop.add_reader(receiving, lambda: _answer(receiving, decide, way.latencies))
    await asyncio.sleep(seconds)
    loop.remove_reader(receiving)
    way.seconds, way.cpu_seconds = perf_counter() - began, process_time() - cpu
    await scraper.close()


def _decider(router: Router, messages: Messages, rng: Random) -> Callable[[], None]:
    under_way = [Conversation(router, rng) for _ in range(32)]

    def decide() -> None:
        conversation = Conversation(router, rng)
        for message in messages[rng.randrange(len(messages))]:
            for answer in conversation.receive(decode(message)):
                encode(answer)
        under_way.append(conversation)
        under_way.pop(0).close()

    return decide


def _answer(receiving: socket.socket, decide: Callable[[], None], latencies: list[float]) -> None:
    """Handle one request for each call, so that other tasks run in between, as with gRPC."""
    (sent,) = _STAMP.unpack(receiving.recv(_STAMP.size))
    decide()
    latencies.append(perf_counter() - sent)


def _drain(receiving: socket.socket) -> None:
    try:
        while receiving.recv(_STAMP.size):
            pass
    except BlockingIOError:
        return


def send(port: int, per_second: float) -> None:
    """Send the time of sending to a port, at random times, until killed."""
    rng = Random(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        while True:
            sleep(rng.expovariate(per_second))
            # All processes of a machine share the clock.
            sending.sendto(_STAMP.pack(perf_counter()), ("127.0.0.1", port))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sender's command line."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.signals")
    parser.add_argument("--send-to", type=int, required=True, help="port")
    send(parser.parse_args(arguments).send_to, _REQUESTS_PER_SECOND)


if __name__ == "__main__":
    main()
