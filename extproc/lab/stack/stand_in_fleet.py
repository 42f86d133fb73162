"""Stand-in vLLM replicas in a process of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from extproc.lab.stack.processes import Process


class StandInFleet(Process):
    """Stand-in vLLM replicas: one process, and one port for each replica."""

    def __init__(self, replicas: int, directory: Path, arguments: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "extproc.lab.stand_ins.vllm"]
        command += ["--announce", "--ports", ",".join(["0"] * replicas), *arguments]
        super().__init__("stand_in_vllm", command, directory)
        self.addresses: list[str] = []

    async def requests(self) -> dict[str, dict[str, int]]:
        """Return the request counters of each replica (in flight, total), by address."""
        async with aiohttp.ClientSession() as session:
            found = {}
            for address in self.addresses:
                async with session.get(f"http://{address}/stand-in/requests") as response:
                    found[address] = await response.json()
        return found

    async def inflight(self) -> dict[str, int]:
        """Return the requests that the replicas really hold, by address, without idle replicas."""
        requests = await self.requests()
        return {address: r["in_flight"] for address, r in requests.items() if r["in_flight"]}

    async def hit_rate(self) -> float:
        """Return prompt tokens found in prefix caches, as a share of those looked up, over all
        replicas.
        """
        hits, queries = await self.looked_up()
        return hits / queries if queries else 0.0

    async def looked_up(self) -> tuple[float, float]:
        """Return the prompt tokens found in prefix caches, and all that were looked up."""
        hits = queries = 0.0
        for address in self.addresses:
            metrics = await self.metrics(address)
            hits += _sample(metrics, "vllm:prefix_cache_hits_total")
            queries += _sample(metrics, "vllm:prefix_cache_queries_total")
        return hits, queries

    async def metrics(self, address: str) -> str:
        """Return the text of a replica's /metrics."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}/metrics") as response,
        ):
            return await response.text()

    async def load_adapter(self, address: str, adapter: str) -> None:
        """Load a LoRA adapter on one replica; the fleet must have been started with --max-loras."""
        body = {"lora_name": adapter, "lora_path": f"/adapters/{adapter}"}
        await self._post(address, "/v1/load_lora_adapter", body)

    async def unload_adapter(self, address: str, adapter: str) -> None:
        """Unload a LoRA adapter on one replica."""
        await self._post(address, "/v1/unload_lora_adapter", {"lora_name": adapter})

    async def _post(self, address: str, path: str, body: Mapping[str, str]) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{address}{path}", json=body) as response,
        ):
            response.raise_for_status()

    async def reset(self) -> None:
        """Empty the prefix caches and reset all counters."""
        async with aiohttp.ClientSession() as session:
            for address in self.addresses:
                async with session.post(f"http://{address}/stand-in/reset-cache") as response:
                    response.raise_for_status()

    async def is_ready(self) -> bool:
        """Return True once the process has announced its ports; `addresses` then holds them."""
        line = self.stdout.read_text()
        if line.endswith("\n"):
            self.addresses = [f"127.0.0.1:{port}" for port in json.loads(line)["ports"]]
        return bool(self.addresses)


def _sample(metrics: str, name: str) -> float:
    """Return the sum of a metric's samples in Prometheus text."""
    lines = (line for line in metrics.splitlines() if line.startswith(name))
    return sum(float(line.rpartition(" ")[2]) for line in lines)
