"""Other routers: HTTP proxies in Rust that also choose by cached prefixes.

`make .routers/.installed` installs them from PyPI into a separate environment. Without it they are
not measured. Each has one worker thread (of tokio), as Envoy has.
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
    """A router in front of workers that its command line names."""

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
        """True if it knows all of its workers. It listens earlier than that."""
        url = f"http://127.0.0.1:{self.port}/readiness"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                found: int = (await response.json()).get("healthy_workers", 0)
        except (aiohttp.ClientError, OSError):
            return False
        return found == self._workers


def installed() -> list[str]:
    """Return the names of the installed routers."""
    return [name for name in PEERS if (ENVIRONMENT / "bin" / name).exists()]
