"""A stand-in Kubernetes API server: real HTTP, no cluster, for tests and local work.

    python -m extproc.lab.api_server --announce --kubeconfig kubeconfig.yaml

It serves ConfigMaps, Events, Pods, Services, EndpointSlices, InferencePools and InferenceObjectives
to kubectl and to client libraries. Like a real server, it has consistent lists, watches that resume
from a version, compaction, conflicts and RBAC; with TLS, it offers HTTP/2. It has no controllers:
no pod runs, and no Service gets a slice. A second port writes objects and injects faults: see
`extproc.lab.api_server.process.StandInApiServer`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from aiohttp import web

from extproc.lab.api_server.control import Control
from extproc.lab.api_server.front import ApiFront
from extproc.lab.api_server.port import BACKLOG, HOST, ApiPort, bound
from extproc.lab.api_server.watch import Ending

_SHUTDOWN_SECONDS = 0.2
"""Seconds that a stop waits for clients that do not read."""


@dataclass(frozen=True)
class Settings:
    """The values of the command line."""

    port: int
    """The API port; 0 for any free port."""

    control_port: int
    token: str
    """The only accepted bearer token; empty to accept every request."""

    certificate: Path | None
    """Certificate and key of the API port in one PEM file; None for plain HTTP."""

    authority: Path | None
    """Certificate authorities that the kubeconfig names."""

    kubeconfig: Path | None
    announce: bool
    """True to print the ports on stdout once they are open."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    settings = parse(arguments)
    try:
        asyncio.run(serve(settings))
    except OSError as error:
        sys.stderr.write(f"stand-in API server: {error}\n")
        return 1
    return 0


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Return the settings of a command line; exit with 2 if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m extproc.lab.api_server",
        description="A stand-in Kubernetes API server on loopback.",
    )
    parser.add_argument("--port", type=_port, default=0, help="0: any free port (default)")
    parser.add_argument("--control-port", type=_port, default=0, help="0: any free port (default)")
    parser.add_argument(
        "--token",
        default="",
        help="the only accepted bearer token (default: any); kubectl sends none over plain HTTP",
    )
    parser.add_argument(
        "--certificate", type=Path, help="PEM file with certificate and key: serve HTTPS with it"
    )
    parser.add_argument(
        "--authority", type=Path, help="certificate authorities that the kubeconfig names"
    )
    parser.add_argument(
        "--kubeconfig", type=Path, help="write a kubeconfig for this server to this file"
    )
    parser.add_argument(
        "--announce",
        action="store_true",
        help='print {"port": ..., "control_port": ...} in one line once they are open '
        "(always done for port 0)",
    )
    parsed = parser.parse_args(arguments)
    return Settings(
        port=parsed.port,
        control_port=parsed.control_port,
        token=parsed.token,
        certificate=parsed.certificate,
        authority=parsed.authority,
        kubeconfig=parsed.kubeconfig,
        # The caller cannot know a port that the kernel chooses.
        announce=parsed.announce or 0 in (parsed.port, parsed.control_port),
    )


async def serve(settings: Settings) -> None:
    """Serve both ports until SIGTERM or SIGINT. Raises OSError."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    front = ApiFront(settings.token)
    runner = await _runner(front.app())
    port = ApiPort(runner, front.faults, settings.port, settings.certificate)
    await port.open()
    control_runner = await _runner(Control(front, port).app())
    control = bound(settings.control_port)
    await web.SockSite(control_runner, control, backlog=BACKLOG).start()
    if settings.kubeconfig is not None:
        settings.kubeconfig.write_text(kubeconfig(settings, port.number))
    if settings.announce:
        ports = {"port": port.number, "control_port": control.getsockname()[1]}
        sys.stdout.write(json.dumps(ports) + "\n")
        sys.stdout.flush()
    await stopping.wait()
    for watch in front.watches:
        watch.end(Ending.NORMAL)
    await asyncio.gather(runner.cleanup(), control_runner.cleanup())


def kubeconfig(settings: Settings, port: int) -> str:
    """Return a kubeconfig with one context."""
    name = "stand-in"
    scheme = "http" if settings.certificate is None else "https"
    cluster = {"server": f"{scheme}://{HOST}:{port}"}
    if settings.authority is not None:
        cluster["certificate-authority"] = str(settings.authority)
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": settings.token} if settings.token else {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


async def _runner(app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(
        app,
        access_log=None,
        # Without it, a watch would run on after its client has disconnected.
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    return runner


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise ValueError
    return port


if __name__ == "__main__":
    sys.exit(main())
