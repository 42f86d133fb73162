"""Stand-in vLLM replicas: many in one process, each on a port of its own.

    python -m extproc.lab.stand_ins.vllm --ports 8001,8002,8003

To a router they are vLLM servers: they have the same paths, response formats and metrics, and a
prefix cache that is warm or cold. The generated text has no meaning. The timing follows the model
in `extproc.lab.engine.replica`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Sequence

from aiohttp import web

from extproc.lab.engine.replica import Replica
from extproc.lab.stand_ins.arguments import Settings, parse
from extproc.lab.stand_ins.engine_task import EngineTask
from extproc.lab.stand_ins.http import StandIn
from extproc.lab.stand_ins.lora_gauge import LoraGauge
from extproc.lab.stand_ins.served_models import ServedModels

_SHUTDOWN_SECONDS = 0.2
"""Seconds until a stop closes the connections of running requests. As by vLLM's default, a stop
does not wait for these requests."""

_BACKLOG = 2048
"""Connections that may wait to be accepted; the value of uvicorn, which serves vLLM."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    settings = parse(arguments)
    try:
        sockets = [_listen(settings.host, port) for port in settings.ports]
    except OSError as error:
        sys.stderr.write(f"stand-in vLLM: cannot listen on {settings.host}: {error}\n")
        return 1
    asyncio.run(serve(settings, sockets))
    return 0


async def serve(settings: Settings, sockets: Sequence[socket.socket]) -> None:
    """Serve one replica on each socket until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    engines = [_engine(settings) for _ in sockets]
    tasks = [asyncio.create_task(engine.run()) for engine in engines]
    runners = [
        await _start(_stand_in(settings, port_of(listening), engine), listening)
        for listening, engine in zip(sockets, engines, strict=True)
    ]
    if settings.announce:
        sys.stdout.write(json.dumps({"ports": [port_of(one) for one in sockets]}) + "\n")
        sys.stdout.flush()
    await _stopped(stopping, tasks)
    await asyncio.gather(*(runner.cleanup() for runner in runners))


def _engine(settings: Settings) -> EngineTask:
    replica = Replica(settings.profile)
    for adapter in settings.adapters:
        replica.load_adapter(adapter)
    if replica.begin_step() is not None:
        replica.finish_step()  # loads the adapters at once: the server has not started yet
    gauge = LoraGauge(replica, settings.style.old_names) if settings.profile.max_loras else None
    return EngineTask(replica, settings.time_scale, gauge)


def _stand_in(settings: Settings, port: int, engine: EngineTask) -> StandIn:
    models = ServedModels(settings.models, settings.adapters)
    return StandIn(port, engine, models, settings.max_model_len, settings.style)


def port_of(listening: socket.socket) -> int:
    """Return the port of a bound socket."""
    port: int = listening.getsockname()[1]
    return port


async def _stopped(stopping: asyncio.Event, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the signal. Raises the exception of a task that fails earlier."""
    signalled = asyncio.create_task(stopping.wait())
    done, _ = await asyncio.wait([signalled, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done - {signalled}:
        task.result()
    for task in tasks:
        task.cancel()


async def _start(stand_in: StandIn, listening: socket.socket) -> web.AppRunner:
    runner = web.AppRunner(
        stand_in.app(),
        access_log=None,
        # Without it, a request would run on after its client has disconnected.
        handler_cancellation=True,
        # The checksums cover the bytes of the wire.
        auto_decompress=False,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    await web.SockSite(runner, listening, backlog=_BACKLOG).start()
    return runner


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


if __name__ == "__main__":
    sys.exit(main())
