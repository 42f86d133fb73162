"""`extproc reach`: connects to the endpoints of a running sidecar."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from extproc.commands.console import OK, Parser, complain, flag
from extproc.commands.values import address, seconds

UNREACHABLE = 1
"""Exit code if an endpoint does not accept connections."""

_AT_ONCE = 64


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "reach",
        help="connect to each endpoint of a running sidecar",
        description="Reads the endpoints from the admin port of a running sidecar, and opens a TCP "
        "connection to each. Run it in the sidecar's pod to find endpoints that a NetworkPolicy "
        "does not let it reach. Prints a line for every such endpoint.",
        examples={
            "extproc reach": "try the endpoints of the sidecar on this machine",
            "kubectl exec deploy/gateway -c extproc -- extproc reach": "try them from its pod",
        },
        exits={
            0: "every endpoint accepts connections",
            1: "an endpoint does not",
            2: "the sidecar does not respond",
        },
    )
    flag(parser, "--admin", "127.0.0.1:9090", address, "ADDR", "admin port of the sidecar")
    parser.add_argument(
        "--timeout",
        default=2.0,
        type=seconds,
        metavar="SECONDS",
        help="time for each connection (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_run(arguments.admin, arguments.timeout))


async def _run(admin: str, timeout: float) -> int:
    try:
        models = await _models(admin)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return complain(f"no sidecar responds at {admin}: {error or type(error).__name__}")
    served = models_by_endpoint(models)
    troubles = await _troubles(served, timeout)
    for target, trouble in sorted(troubles.items()):
        print(f"{', '.join(served[target])}: {target}: {trouble}", file=sys.stderr)
    print(f"{len(served) - len(troubles)} of {len(served)} endpoints accept connections")
    return UNREACHABLE if troubles else OK


def models_by_endpoint(models: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of models by endpoint, without endpoints that left and only end streams."""
    found: dict[str, list[str]] = {}
    for name, model in models.items():
        for endpoint in model["endpoints"]:
            if endpoint["state"] != "draining":
                found.setdefault(endpoint["address"], []).append(name)
    return found


async def _models(admin: str) -> dict[str, Any]:
    """Return the models in /debug/state."""
    is_unix = admin.startswith("unix:")
    connector = aiohttp.UnixConnector(admin.removeprefix("unix:")) if is_unix else None
    base = "http://sidecar" if is_unix else f"http://{admin}"
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.get(f"{base}/debug/state", raise_for_status=True) as response,
    ):
        models: dict[str, Any] = (await response.json())["models"]
        return models


async def _troubles(targets: Iterable[str], timeout: float) -> dict[str, str]:
    """Return why endpoints do not accept connections, by address."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def trouble(target: str) -> tuple[str, str | None]:
        async with limit:
            return target, await _trouble(target, timeout)

    found = await asyncio.gather(*map(trouble, targets))
    return {target: text for target, text in found if text is not None}


async def _trouble(target: str, timeout: float) -> str | None:
    host, _, port = target.rpartition(":")
    connecting = asyncio.open_connection(host.strip("[]"), int(port))
    try:
        _, writer = await asyncio.wait_for(connecting, timeout)
    except TimeoutError:
        return f"no connection within {timeout:g} s; does a NetworkPolicy allow it?"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None
