"""Endpoints whose `/metrics` works, hangs or never ends; many of them in one process.

    python -m extproc.lab.bench.metrics_endpoints --ports 200 --manner flood

They are for benchmarks, implement as much HTTP as these need, and print their ports as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from enum import StrEnum

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica
from extproc.lab.stand_ins import openai_shapes
from extproc.lab.stand_ins.served_models import ServedModels
from extproc.lab.stand_ins.vllm_metrics import MetricsStyle, exposition

FLOOD_BYTES = 100_000_000
_PIECE = b"# " + b"x" * 65_533 + b"\n"
# Size of a real server's response.
_PADDING = 50_000


class Manner(StrEnum):
    """Behavior of an endpoint."""

    HEALTHY = "healthy"
    """Responds like an idle vLLM server with two adapters."""

    HANG = "hang"
    """Accepts the request and sends nothing."""

    FLOOD = "flood"
    """Sends 100 MB without a content length."""


class _Endpoint(asyncio.Protocol):
    def __init__(self, manner: Manner, metrics: bytes, models: bytes) -> None:
        self._manner = manner
        self._metrics = metrics
        self._models = models
        self._flood = 0
        self._paused = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        match self._manner:
            case Manner.HEALTHY:
                self._transport.write(self._models if b" /v1/models " in data else self._metrics)
            case Manner.FLOOD:
                self._transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
                self._flood = FLOOD_BYTES
                self._pour()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pour()

    def _pour(self) -> None:
        assert self._transport is not None
        # The client may close the connection at any time.
        while self._flood > 0 and not self._paused and not self._transport.is_closing():
            self._flood -= len(_PIECE)
            self._transport.write(_PIECE)
        if self._manner is Manner.FLOOD and self._flood <= 0:
            self._transport.close()


async def serve(ports: int, manner: Manner) -> None:
    """Serve until killed."""
    metrics = exposition(Replica(L4_LLAMA_3_1_8B_FP8), "stand-in", MetricsStyle(padding=_PADDING))
    models = openai_shapes.models(ServedModels(("stand-in",), ("law", "sql")), 16_384, 0)
    answers = _answer(metrics), _answer(models)
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Endpoint(manner, *answers), "127.0.0.1", 0)
        for _ in range(ports)
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


def _answer(body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.metrics_endpoints")
    parser.add_argument("--ports", type=int, default=1, help="number of endpoints")
    parser.add_argument("--manner", type=Manner, choices=list(Manner), default=Manner.HEALTHY)
    parsed = parser.parse_args(arguments)
    asyncio.run(serve(parsed.ports, parsed.manner))


if __name__ == "__main__":
    main()
