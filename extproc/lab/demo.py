"""The main job, to be watched: chat traffic through Envoy and the sidecar, strategy by strategy.

    make demo   compares RoundRobin, LeastLoad, PrefixHash and PrefixCache and prints a table
    make run    keeps the stack up for curl

Envoy and the sidecar are real; the vLLM replicas are stand-ins that keep real
prefix caches and take the time that a model of an L4 gives (see `replica.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from extproc.envoy import envoy_configuration
from extproc.lab.chat import Run, Workload, drive
from extproc.lab.processes import until
from extproc.lab.stack import (
    Envoy,
    EnvoyPlaces,
    FileSidecar,
    StandInFleet,
    adapted,
)

MODEL = "llama-3.1-8b-instruct-fp8-l4"
STRATEGIES = ("RoundRobin", "LeastLoad", "PrefixHash", "PrefixCache")
REPLICAS = 8
TIME_SCALE = 3.5


@dataclass(frozen=True)
class Result:
    """What one strategy did with the workload."""

    strategy: str
    run: Run
    hit_rate: float
    spread: float
    """The busiest replica's requests over the mean."""


class Stack:
    """Envoy, sidecar and replicas, up and running."""

    def __init__(self, envoy: Envoy, sidecar: FileSidecar, replicas: StandInFleet) -> None:
        self.envoy = envoy
        self.sidecar = sidecar
        self.replicas = replicas

    async def use(self, strategy: str) -> None:
        """Changes the strategy by changing the models document, and empties the caches."""
        self.sidecar.write_models(_models(strategy, self.replicas.addresses))

        async def in_force() -> bool:
            return bool((await self.sidecar.state())[MODEL]["strategy"] == strategy)

        await until(in_force, 10, f"{strategy} to be in force")
        await self.replicas.reset()


async def start(cleanup: AsyncExitStack, directory: Path) -> Stack:
    """Starts everything; `cleanup` stops it."""
    arguments = ["--model", MODEL, "--time-scale", str(TIME_SCALE)]
    replicas = StandInFleet(REPLICAS, directory, arguments)
    cleanup.push_async_callback(replicas.stop)
    await replicas.start()
    sidecar = FileSidecar(_models("PrefixHash", replicas.addresses), directory)
    cleanup.push_async_callback(sidecar.stop)
    await sidecar.start()
    config = adapted(envoy_configuration(), EnvoyPlaces(sidecar.listen, replicas.addresses))
    envoy = Envoy(config, directory)
    cleanup.push_async_callback(envoy.stop)
    await envoy.start()
    return Stack(envoy, sidecar, replicas)


async def compare(stack: Stack, workload: Workload, console: Console) -> list[Result]:
    """Runs the same workload with one strategy after the other."""
    results = []
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for strategy in STRATEGIES:
            advance = partial(
                progress.advance, progress.add_task(strategy, total=workload.requests)
            )
            await stack.use(strategy)
            before = await stack.replicas.requests()
            run = await drive(stack.envoy.url, MODEL, workload, advance)
            served = [
                after["total"] - before[address]["total"]
                for address, after in (await stack.replicas.requests()).items()
            ]
            hit_rate = await stack.replicas.hit_rate()
            results.append(Result(strategy, run, hit_rate, max(served) / fmean(served)))
    return results


def table(results: Sequence[Result]) -> Table:
    """The comparison; times as the clients saw them."""
    rows = Table(title="the same conversations under each strategy")
    for column in (
        *("strategy", "mean TTFT ms", "p50", "p99", "cache hits", "spread"),
        *("tokens/s", "seconds", "failed"),
    ):
        rows.add_column(column, justify="left" if column == "strategy" else "right")
    for result in results:
        ttfts = result.run.ttfts()
        rows.add_row(
            result.strategy,
            f"{fmean(ttfts) * 1e3:,.0f}",
            f"{_percentile(ttfts, 50) * 1e3:,.0f}",
            f"{_percentile(ttfts, 99) * 1e3:,.0f}",
            f"{result.hit_rate:.0%}",
            f"{result.spread:.2f}",
            f"{result.run.tokens() / result.run.seconds:,.0f}",
            f"{result.run.seconds:.1f}",
            str(result.run.failed()),
        )
    return rows


async def demo(workload: Workload) -> int:
    """Shows the comparison and a few access-log lines; 0 unless a request failed."""
    console = Console(width=max(Console().width, 100))
    with tempfile.TemporaryDirectory(prefix="extproc-demo-") as directory:
        async with AsyncExitStack() as cleanup:
            stack = await start(cleanup, Path(directory))
            console.print(
                f"Envoy {stack.envoy.url} -> extproc serve -> {REPLICAS} stand-in vLLM replicas "
                f"({TIME_SCALE:g} x the speed of an L4)\n"
                f"{workload.users} users, {workload.turns} turns each, "
                f"{workload.system_prompts} shared system prompts"
            )
            results = await compare(stack, workload, console)
            await until(
                lambda: len(stack.envoy.access_log()) >= workload.requests * len(results),
                10,
                "the access log",
            )
            console.print("\nDecisions in Envoy's access log:")
            for line in _examples(stack.envoy.access_log()):
                console.print_json(json.dumps(line), indent=None)
            console.print(table(results))
    return 1 if any(result.run.failed() for result in results) else 0


async def keep_running() -> int:
    """Starts the stack and tells how to talk to it, until Ctrl-C."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with tempfile.TemporaryDirectory(prefix="extproc-run-") as directory:
        async with AsyncExitStack() as cleanup:
            stack = await start(cleanup, Path(directory))
            body = (
                f'{{"model": "{MODEL}", "stream": true, "max_tokens": 20, '
                '"messages": [{"role": "user", "content": "Hello!"}]}'
            )
            print(f"curl -N {stack.envoy.url}/v1/chat/completions -d '{body}'")
            print(f"curl {stack.envoy.url}/v1/models")
            print(f"curl {stack.sidecar.admin}/debug/state")
            print(f"curl {stack.sidecar.admin}/metrics")
            print(f"tail -f {stack.envoy.stdout}   # access log")
            print(f"$EDITOR {stack.sidecar.models}   # changes take effect live")
            print("Ctrl-C stops everything.", flush=True)
            await stopping.wait()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of `make demo` and `make run`."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.demo", description=__doc__)
    parser.add_argument("--keep-running", action="store_true", help="keep the stack up for curl")
    parser.add_argument("--users", type=int, default=Workload.users)
    parser.add_argument("--turns", type=int, default=Workload.turns)
    parsed = parser.parse_args(arguments)
    if parsed.keep_running:
        return asyncio.run(keep_running())
    return asyncio.run(demo(Workload(users=parsed.users, turns=parsed.turns)))


def _models(strategy: str, addresses: Sequence[str]) -> dict[str, object]:
    model = {
        "name": MODEL,
        "endpoints": list(addresses),
        "loadBalancing": {"strategy": strategy},
    }
    return {"models": [model]}


def _examples(log: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The last line of each kind of decision."""
    last = {(line["strategy"], line["reason"]): line for line in log}
    names = ("status", "upstream", "strategy", "reason", "prefix_hash", "inflight", "hops")
    shown = (*names, "predicted_hit")  # which only some strategies have
    return [
        {name: line[name] for name in shown if line.get(name) is not None} for line in last.values()
    ]


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """The value at a percentile of values in order of size; the nearest rank."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


if __name__ == "__main__":
    sys.exit(main())
