"""Stand-in vLLM replicas: many in one process, each on a port of its own.

    python -m extproc.lab.stand_ins.vllm --ports 8001,8002,8003

For a router they are vLLM servers: same paths, same shapes, same metrics, and a prefix
cache that is warm or not. The text they generate means nothing, and the time they take
is that of the model in `extproc.lab.engine.replica`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiohttp import web

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Profile, Replica
from extproc.lab.stand_ins.engine_task import EngineTask
from extproc.lab.stand_ins.http import MAX_MODEL_LEN, StandIn
from extproc.lab.stand_ins.lora_gauge import LoraGauge
from extproc.lab.stand_ins.served_models import ServedModels
from extproc.lab.stand_ins.vllm_metrics import MetricsStyle

_SHUTDOWN_SECONDS = 0.2
"""Like vLLM's default, a stop does not wait for running requests; this closes their connections."""

_BACKLOG = 2048
"""Connections not yet accepted: as many as uvicorn, which serves vLLM, lets wait."""


@dataclass(frozen=True)
class Settings:
    """The command line."""

    host: str
    ports: tuple[int, ...]
    """0: any free one."""

    models: tuple[str, ...]
    """Names served; none: any."""

    adapters: tuple[str, ...]
    """Names of LoRA adapters, loaded from the start."""

    time_scale: float
    """How many times faster than real."""

    profile: Profile
    max_model_len: int
    """Tokens of prompt and output together."""

    style: MetricsStyle
    """Of /metrics."""

    announce: bool
    """Whether to say the ports on stdout once they are open."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT."""
    settings = parse(arguments)
    try:
        sockets = [_listen(settings.host, port) for port in settings.ports]
    except OSError as error:
        sys.stderr.write(f"stand-in vLLM: cannot listen on {settings.host}: {error}\n")
        return 1
    asyncio.run(serve(settings, sockets))
    return 0


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """The settings of a command line; exits with 2 where it is wrong."""
    default = L4_LLAMA_3_1_8B_FP8
    parser = argparse.ArgumentParser(
        prog="python -m extproc.lab.stand_ins.vllm", description="Stand-in vLLM replicas."
    )
    parser.add_argument("--ports", type=_ports, required=True, help="comma list; 0: any free port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--model", type=_names, default=(), help="comma list of served names (default: any)"
    )
    parser.add_argument(
        "--time-scale", type=_positive_float, default=1.0, help="times faster than real"
    )
    parser.add_argument(
        "--kv-tokens",
        type=_positive_int,
        default=default.kv_tokens,
        help="size of the KV cache of each replica (default: %(default)s)",
    )
    parser.add_argument(
        "--max-num-seqs",
        type=_positive_int,
        default=default.max_num_seqs,
        help="requests in a running batch at most (default: %(default)s)",
    )
    parser.add_argument(
        "--max-model-len",
        type=_positive_int,
        default=MAX_MODEL_LEN,
        help="tokens of prompt and output together at most (default: %(default)s)",
    )
    parser.add_argument(
        "--announce",
        action="store_true",
        help='print {"ports": [...]} in one line once they are open (always done for port 0)',
    )
    _add_lora(parser, default)
    _add_metrics(parser)
    parsed = parser.parse_args(arguments)
    if parsed.kv_tokens < default.block_size:
        parser.error(f"--kv-tokens: a block has {default.block_size} tokens, so give as many")
    if parsed.adapters and not parsed.max_loras:
        parser.error("--adapters: give --max-loras, which turns LoRA on")
    if both := set(parsed.adapters) & set(parsed.model):
        parser.error(f"--adapters: {', '.join(both)} is a name of the base model")
    if 0 < parsed.max_cpu_loras < parsed.max_loras:
        parser.error("--max-cpu-loras: adapters of --max-loras are among them, so give as many")
    return Settings(
        host=parsed.host,
        ports=parsed.ports,
        models=parsed.model,
        adapters=parsed.adapters,
        time_scale=parsed.time_scale,
        profile=replace(
            default,
            kv_tokens=parsed.kv_tokens,
            max_num_seqs=parsed.max_num_seqs,
            max_loras=parsed.max_loras,
            max_cpu_loras=parsed.max_cpu_loras,
            lora_load_seconds=parsed.lora_load_seconds,
        ),
        max_model_len=parsed.max_model_len,
        style=MetricsStyle(parsed.old_metric_names, parsed.metrics_padding),
        # Nobody could know a port that was not chosen by them.
        announce=parsed.announce or 0 in parsed.ports,
    )


def _add_lora(parser: argparse.ArgumentParser, default: Profile) -> None:
    lora = parser.add_argument_group("LoRA adapters")
    lora.add_argument(
        "--max-loras",
        type=_positive_int,
        default=0,
        help="adapters in a running batch at most; turns LoRA on (default: off)",
    )
    lora.add_argument(
        "--max-cpu-loras",
        type=_positive_int,
        default=0,
        help="adapters in host memory, those in the batch among them (default: --max-loras)",
    )
    lora.add_argument(
        "--adapters", type=_names, default=(), help="comma list of names, loaded from the start"
    )
    lora.add_argument(
        "--lora-load-seconds",
        type=_seconds,
        default=default.lora_load_seconds,
        help="real seconds to read an adapter from disk (default: %(default)s)",
    )


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    metrics = parser.add_argument_group("/metrics")
    metrics.add_argument(
        "--old-metric-names",
        action="store_true",
        help="as older vLLM: gpu_cache_usage_perc; running and waiting adapters told apart",
    )
    metrics.add_argument(
        "--metrics-padding",
        type=_natural,
        default=0,
        metavar="BYTES",
        help="of series that mean nothing; a real vLLM has 50 kB (default: %(default)s)",
    )


async def serve(settings: Settings, sockets: Sequence[socket.socket]) -> None:
    """One replica on each socket, until SIGTERM or SIGINT."""
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
        replica.finish_step()  # before there is a server, so it takes nobody's time
    gauge = LoraGauge(replica, settings.style.old_names) if settings.profile.max_loras else None
    return EngineTask(replica, settings.time_scale, gauge)


def _stand_in(settings: Settings, port: int, engine: EngineTask) -> StandIn:
    models = ServedModels(settings.models, settings.adapters)
    return StandIn(port, engine, models, settings.max_model_len, settings.style)


def port_of(listening: socket.socket) -> int:
    """The port a socket is bound to."""
    port: int = listening.getsockname()[1]
    return port


async def _stopped(stopping: asyncio.Event, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for the signal. A task that fails before raises here: no port may hang silently."""
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
        # Without it nobody would notice that the client of a running request has gone.
        handler_cancellation=True,
        # The checksums are of what came over the wire.
        auto_decompress=False,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    await web.SockSite(runner, listening, backlog=_BACKLOG).start()
    return runner


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _ports(text: str) -> tuple[int, ...]:
    ports = tuple(int(part) for part in text.split(","))
    if not all(0 <= port < 65536 for port in ports):
        raise ValueError
    return ports


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    # The second half refuses infinity; not-a-number fails the first.
    if not 0 < value < 1e9:
        raise ValueError
    return value


if __name__ == "__main__":
    sys.exit(main())
