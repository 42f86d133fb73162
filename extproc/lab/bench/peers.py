"""Routers of others: HTTP proxies in Rust that choose by cached prefixes, too.

They come from PyPI into an environment of their own (`make .routers/.installed`), and are
measured where that is there. Each has one worker thread (of tokio's), as Envoy has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import aiohttp

from extproc.lab.stack.processes import Process, free_port

ENVIRONMENT = Path(__file__).parents[3] / ".routers"
PEERS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
"""The programs, and the versions that the Makefile installs."""


class Peer(Process):
    """One of them, in front of workers that it is told of at its start."""

    def __init__(self, name: str, workers: Sequence[str], directory: Path) -> None:
        self.port = free_port()
        program = ENVIRONMENT / "bin" / name
        command = [str(program), *(["launch"] if name == "sglang-router" else [])]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--policy", "cache_aware"]
        command += ["--prometheus-port", str(free_port())]
        command += ["--worker-urls", *(f"http://{worker}" for worker in workers)]
        super().__init__(name, command, directory, {"TOKIO_WORKER_THREADS": "1"})
        self._workers = len(workers)

    async def is_ready(self) -> bool:
        """Whether it knows all of its workers: it listens before it does."""
        url = f"http://127.0.0.1:{self.port}/readiness"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                found: int = (await response.json()).get("healthy_workers", 0)
        except (aiohttp.ClientError, OSError):
            return False
        return found == self._workers


def installed() -> list[str]:
    """Those that can be run."""
    return [name for name in PEERS if (ENVIRONMENT / "bin" / name).exists()]
