"""A stand-in Kubernetes API server: real HTTP, no cluster, for tests and local work.

    python -m extproc.lab.api_server --announce --kubeconfig kubeconfig.yaml

It serves ConfigMaps, Events, Pods, Services, EndpointSlices and InferencePools to kubectl and
to client libraries, as a real one does: lists of one version, watches that go on from one,
compaction, conflicts, RBAC. Nothing acts on the objects: no pod runs, no slice is made for a
Service. A second port, for control, writes objects and makes things go wrong; see
`extproc.lab.stack.cluster.StandInApiServer` for what it can do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from aiohttp import web

from extproc.lab.api_server.control import Control
from extproc.lab.api_server.front import ApiFront
from extproc.lab.api_server.watch import Ending

_HOST = "127.0.0.1"

_BACKLOG = 1024

_SHUTDOWN_SECONDS = 0.2
"""A stop does not wait for clients that read nothing."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: what closes the socket resets the connection."""


@dataclass(frozen=True)
class Settings:
    """The command line."""

    port: int
    """0: any free one."""

    control_port: int
    token: str
    """The only one that is let in; empty: any, and none."""

    kubeconfig: Path | None
    announce: bool
    """Whether to say the ports on stdout once they are open."""


class ApiPort:
    """The API's listening socket, which can be closed and opened again on the same port."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self._server: asyncio.Server | None = None
        # Bound for as long as the process lives, so that nobody else gets the port meanwhile.
        self._reservation = _bound(port)
        self.number: int = self._reservation.getsockname()[1]

    async def open(self) -> None:
        """Listens; nothing if it does already."""
        if self._server is None:
            factory = self._runner.server
            assert factory is not None
            listening = _bound(self.number)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(factory, sock=listening, backlog=_BACKLOG)

    async def close(self) -> None:
        """Refuses connections from now on and resets those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._reset_connections()
            # Connections that were just being accepted show up a little later.
            await asyncio.sleep(0.01)
            self._reset_connections()

    def _reset_connections(self) -> None:
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if (transport := connection.transport) is not None:
                client: socket.socket = transport.get_extra_info("socket")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                transport.abort()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT."""
    settings = parse(arguments)
    try:
        asyncio.run(serve(settings))
    except OSError as error:
        sys.stderr.write(f"stand-in API server: {error}\n")
        return 1
    return 0


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """The settings of a command line; exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m extproc.lab.api_server",
        description="A stand-in Kubernetes API server on loopback.",
    )
    parser.add_argument("--port", type=_port, default=0, help="0: any free port (default)")
    parser.add_argument("--control-port", type=_port, default=0, help="0: any free port (default)")
    parser.add_argument(
        "--token",
        default="",
        help="the only bearer token let in (default: any); kubectl sends none over plain HTTP",
    )
    parser.add_argument("--kubeconfig", type=Path, help="write one that leads here to this file")
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
        kubeconfig=parsed.kubeconfig,
        # Nobody could know a port that was not chosen by them.
        announce=parsed.announce or 0 in (parsed.port, parsed.control_port),
    )


async def serve(settings: Settings) -> None:
    """Both ports, until SIGTERM or SIGINT. Raises OSError."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    front = ApiFront(settings.token)
    runner = await _runner(front.app())
    port = ApiPort(runner, settings.port)
    await port.open()
    control_runner = await _runner(Control(front, port).app())
    control = _bound(settings.control_port)
    await web.SockSite(control_runner, control, backlog=_BACKLOG).start()
    if settings.kubeconfig is not None:
        settings.kubeconfig.write_text(kubeconfig(f"http://{_HOST}:{port.number}", settings.token))
    if settings.announce:
        ports = {"port": port.number, "control_port": control.getsockname()[1]}
        sys.stdout.write(json.dumps(ports) + "\n")
        sys.stdout.flush()
    await stopping.wait()
    for watch in front.watches:
        watch.end(Ending.NORMAL)
    await asyncio.gather(runner.cleanup(), control_runner.cleanup())


def kubeconfig(url: str, token: str) -> str:
    """A kubeconfig with one context."""
    name = "stand-in"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": url}}],
            "users": [{"name": name, "user": {"token": token} if token else {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


async def _runner(app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(
        app,
        access_log=None,
        # Without it nobody would notice that the client of a watch has gone.
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    return runner


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((_HOST, port))
    return bound


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise ValueError
    return port


if __name__ == "__main__":
    sys.exit(main())
