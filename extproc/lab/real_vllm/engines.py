"""Real vLLM engines on the CPU, each on a loopback port of its own.

They run in an environment of their own, which `make e2e-vllm` installs: vLLM pins
what it needs, and brings gigabytes of it. An engine takes 20 to 40 s to start and
1.4 GB; it is slow and halts at times, so what it counts is to be trusted and how
long it takes is not.
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

START_SECONDS = 180.0
"""Several times what an engine takes: on a machine of two cores, two start at once."""

PATIENCE = aiohttp.ClientTimeout(total=30)

BLOCK_SIZE = 32
"""Tokens; on the CPU a multiple of 32."""
BLOCKS = 512
"""Of the prefix cache, and of all that runs."""
MAX_TOKENS = 16_000
"""Of one request, prompt and answer: nearly all of the blocks."""
MAX_RUNNING = 4
"""Requests at once; further ones wait."""
MAX_LORAS = 2
"""Adapters in one batch."""

FLAGS = (
    *("--enforce-eager", "--dtype", "float32"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
    *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(BLOCKS)),
    *("--max-model-len", str(MAX_TOKENS), "--max-num-seqs", str(MAX_RUNNING)),
    *("--enable-lora", "--max-loras", str(MAX_LORAS), "--max-lora-rank", "8"),
)

# One thread for each engine, bound to no core, and nothing that asks the world.
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
    """Writes a tiny model to DIRECTORY/model and adapters to it to DIRECTORY/NAME."""
    script = Path(__file__).with_name("tiny_llama.py")
    command = [str(VLLM_PYTHON), "-P", str(script), str(directory), *adapters]
    subprocess.run(command, check=True, timeout=60)


class RealVllm(Process):
    """One engine: API server, engine core and worker, started and ended together."""

    def __init__(
        self,
        number: int,
        model: Path,
        served_name: str,
        directory: Path,
        adapters: Mapping[str, Path] | None = None,
    ) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._url = f"http://{self.address}"
        sockets = directory / f"vllm-{number}.sockets"
        sockets.mkdir()
        command = [sys.executable, "-m", "extproc.lab.real_vllm.guard", str(os.getpid())]
        command += [str(VLLM_PYTHON), "-P", "-m", "vllm.entrypoints.openai.api_server", *FLAGS]
        command += ["--model", str(model), "--served-model-name", served_name]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        if adapters:
            command += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
        environment = {**ENVIRONMENT, "VLLM_RPC_BASE_PATH": str(sockets)}
        super().__init__(f"vllm-{number}", command, directory, environment)

    async def start(self) -> None:
        """Spawns it and waits until it serves. Raises RuntimeError with its complaint."""
        self.spawn()
        try:
            await until(self._runs_and_is_ready, START_SECONDS, f"{self.name} to be ready")
        except TimeoutError as error:
            raise RuntimeError(f"{error}: {self.error_output()}") from None

    async def is_ready(self) -> bool:
        """What it says itself."""
        try:
            await self._get("/health")
        except (aiohttp.ClientError, OSError):
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL to the guard and to all it guards, and waits for the end."""
        if self._process is not None and self.returncode() is None:
            kill_session(self.pid)
            await self.wait()

    def complaint(self) -> str:
        """The end of what it wrote: what broke stands in its log, that it did on stderr."""
        log = self.stdout.read_text(errors="replace") if self.stdout.exists() else ""
        return f"{log[-4000:]}\n{super().error_output()}"

    async def metrics(self) -> Metrics:
        """What it says of itself at this moment."""
        return Metrics(await self._get("/metrics"))

    async def load_adapter(self, name: str, path: Path) -> None:
        """Makes it serve one more adapter."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def unload_adapter(self, name: str) -> None:
        """Makes it forget an adapter."""
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
    """Engines that serve the same model under the same name."""

    def __init__(self, engines: Sequence[RealVllm]) -> None:
        self.engines = engines

    @property
    def addresses(self) -> list[str]:
        """IP:PORT of each."""
        return [engine.address for engine in self.engines]

    async def start(self) -> None:
        """Starts all of them at once. Raises RuntimeError."""
        await asyncio.gather(*(engine.start() for engine in self.engines))

    async def stop(self) -> None:
        """Stops all of them."""
        await asyncio.gather(*(engine.stop() for engine in self.engines))

    async def metrics(self) -> dict[str, Metrics]:
        """Of each engine, by address."""
        found = await asyncio.gather(*(engine.metrics() for engine in self.engines))
        return dict(zip(self.addresses, found, strict=True))

    async def inflight(self) -> dict[str, int]:
        """Requests that the engines really hold, by address; idle ones are left out."""
        metrics = await self.metrics()
        return {address: m.held for address, m in metrics.items() if m.held}

    async def cache_use(self) -> dict[str, CacheUse]:
        """Of each engine since its start, by address."""
        return {address: m.cache_use for address, m in (await self.metrics()).items()}
