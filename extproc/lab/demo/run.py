"""`extproc run`: keeps the demo's stack running, and prints curl commands for it."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from extproc.commands.console import Parser, complain
from extproc.lab.demo.stack import MODEL, Stack, start
from extproc.lab.stack.processes import NotReadyError

BODY = (
    f'{{"model": "{MODEL}", "stream": true, "max_tokens": 20, '
    '"messages": [{"role": "user", "content": "Hello!"}]}'
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `extproc run` until SIGINT or SIGTERM; return its exit code."""
    parser().parse_args(arguments)
    try:
        return asyncio.run(_keep_up())
    except NotReadyError as error:
        return complain(f"extproc run: {error}")


def parser() -> Parser:
    """Return the parser of `extproc run`."""
    return Parser(
        prog="extproc run",
        description="Starts Envoy, the sidecar and stand-in vLLM replicas on free loopback "
        "ports, prints curl commands for them, and keeps them up until Ctrl-C.",
        examples={"extproc run": "start the stack"},
        exits={0: "Ctrl-C or SIGTERM", 2: "a part of the stack did not start"},
    )


async def _keep_up() -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with tempfile.TemporaryDirectory(prefix="extproc-run-") as directory:
        async with AsyncExitStack() as cleanup:
            stack = await start(cleanup, Path(directory))
            print(*_instructions(stack), sep="\n", flush=True)
            await stopping.wait()
    return 0


def _instructions(stack: Stack) -> list[str]:
    return [
        f"curl -N {stack.gateway.envoy.url}/v1/chat/completions -d '{BODY}'",
        f"curl {stack.gateway.envoy.url}/v1/models",
        f"{stack.gateway.sidecar.admin}/   # status page, for a browser",
        f"curl {stack.gateway.sidecar.admin}/debug/state",
        f"curl {stack.gateway.sidecar.admin}/metrics",
        f"tail -f {stack.gateway.envoy.stdout}   # access log",
        f"$EDITOR {stack.gateway.sidecar.models}   # changes take effect live",
        "Ctrl-C stops everything.",
    ]
