"""Real vLLM engines on the CPU, each on its own loopback port.

They run in a separate environment, which `make e2e-vllm` installs: vLLM pins its dependencies, and
they take gigabytes. An engine needs 20 to 40 s to start and 1.4 GB of memory. It is slow and halts
at times, so tests can rely on its counters but not on its timing.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from extproc.lab.real_vllm.guard import kill_session
from extproc.lab.real_vllm.metrics import CacheUse, Metrics
from extproc.lab.stack.processes import Process, free_port, until

VLLM_HOME = Path(__file__).parents[3] / ".vllm"
VLLM_PYTHON = VLLM_HOME / "bin" / "python"

START_SECONDS = 600.0
"""Longest start of an engine: 20 times as long as on an idle machine."""

# A tiny model that streams as fast as it can on two cores has delayed /metrics by ten seconds.
PATIENCE = aiohttp.ClientTimeout(total=120)

BLOCK_SIZE = 32
"""Tokens of a block; a multiple of 32 on the CPU."""
BLOCKS = 512
"""Blocks of the KV cache."""
MAX_TOKENS = 16_000
"""Most tokens of a request, prompt and output: nearly all of the blocks."""
MAX_RUNNING = 4
"""Most running requests; further ones wait."""
MAX_LORAS = 2
"""Most adapters in one batch."""

FLAGS = (
    *("--enforce-eager", "--dtype", "float32"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
    *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(BLOCKS)),
    *("--max-model-len", str(MAX_TOKENS), "--max-num-seqs", str(MAX_RUNNING)),
    *("--enable-lora", "--max-loras", str(MAX_LORAS), "--max-lora-rank", "8"),
)

# One thread for each engine, bound to no core, and no requests to the internet.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CACHE_ROOT": str(VLLM_HOME / "cache"),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


def build_model(directory: Path, adapters: Sequence[str]) -> None:
    """Write a tiny model to DIRECTORY/model and its adapters to DIRECTORY/NAME."""
    script = Path(__file__).with_name("tiny_llama.py")
    command = [str(VLLM_PYTHON), "-P", str(script), str(directory), *adapters]
    subprocess.run(command, check=True, timeout=START_SECONDS)


class RealVllm(Process):
    """One engine: API server, engine core and worker, which start and end together."""

    def __init__(
        self,
        number: int,
        model: Path,
        served_name: str,
        directory: Path,
        adapters: Mapping[str, Path] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """Describe an engine; `flags` come after the usual ones, and replace them."""
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._url = f"http://{self.address}"
        sockets = directory / f"vllm-{number}.sockets"
        sockets.mkdir()
        command = [sys.executable, "-m", "extproc.lab.real_vllm.guard", str(os.getpid())]
        command += [str(VLLM_PYTHON), "-P", "-m", "vllm.entrypoints.openai.api_server", *FLAGS]
        command += flags
        command += ["--model", str(model), "--served-model-name", served_name]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        if adapters:
            command += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
        environment = {**ENVIRONMENT, "VLLM_RPC_BASE_PATH": str(sockets)}
        super().__init__(f"vllm-{number}", command, directory, environment)

    async def start(self) -> None:
        """Spawn the engine and wait until it serves. Raises RuntimeError with its output."""
        self.spawn()
        try:
            await until(self._runs_and_is_ready, START_SECONDS, f"{self.name} to be ready")
        except TimeoutError as error:
            raise RuntimeError(f"{error}: {self.error_output()}") from None

    async def is_ready(self) -> bool:
        """Return True once `/health` answers 200."""
        try:
            await self._get("/health")
        except (aiohttp.ClientError, OSError):
            return False
        return True

    async def kill(self) -> None:
        """Send SIGKILL to the guard and to its session, and wait for the end."""
        if self._process is not None and self.returncode() is None:
            kill_session(self.pid)
            await self.wait()

    def error_output(self) -> str:
        """Return the end of the log, which has the cause of an error, and of stderr."""
        log = self.stdout.read_text(errors="replace") if self.stdout.exists() else ""
        return f"{log[-4000:]}\n{super().error_output()}"

    async def metrics(self) -> Metrics:
        """Return the current metrics."""
        return Metrics(await self._get("/metrics"))

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load an adapter."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def _get(self, path: str) -> str:
        async with (
            aiohttp.ClientSession(self._url, timeout=PATIENCE) as session,
            session.get(path) as response,
        ):
            response.raise_for_status()
            return await response.text()

    async def _post(self, path: str, body: Mapping[str, str]) -> None:
        async with (
            aiohttp.ClientSession(self._url, timeout=PATIENCE) as session,
            session.post(path, json=body) as response,
        ):
            assert response.status == 200, await response.text()


class RealFleet:
    """Engines that serve the same model with the same name."""

    def __init__(self, engines: Sequence[RealVllm]) -> None:
        self.engines = engines

    @property
    def addresses(self) -> list[str]:
        """IP:PORT of each engine."""
        return [engine.address for engine in self.engines]

    async def start(self) -> None:
        """Start all engines at once. Raises RuntimeError."""
        await asyncio.gather(*(engine.start() for engine in self.engines))

    async def stop(self) -> None:
        """Stop all engines."""
        await asyncio.gather(*(engine.stop() for engine in self.engines))

    async def metrics(self) -> dict[str, Metrics]:
        """Return the metrics of each engine, by address."""
        found = await asyncio.gather(*(engine.metrics() for engine in self.engines))
        return dict(zip(self.addresses, found, strict=True))

    async def inflight(self) -> dict[str, int]:
        """Return the requests that the engines hold, by address, without idle engines."""
        metrics = await self.metrics()
        return {address: m.held for address, m in metrics.items() if m.held}

    async def cache_use(self) -> dict[str, CacheUse]:
        """Return the cache use of each engine since its start, by address."""
        return {address: m.cache_use for address, m in (await self.metrics()).items()}
