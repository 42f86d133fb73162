"""`extproc demo`: chat traffic through Envoy and the sidecar, one strategy after the other."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from extproc.commands.console import Parser, complain
from extproc.lab.demo.chat import Run, Workload, drive
from extproc.lab.demo.page import write_page
from extproc.lab.demo.report import Result, introduction, report, report_on_gateways
from extproc.lab.demo.stack import MODEL, Gateway, Stack, start, start_gateways
from extproc.lab.stack.processes import NotReadyError, until
from extproc.lab.stack.stand_in_fleet import StandInFleet
from extproc.lab.stack.valkey import Valkey

STRATEGIES = ("RoundRobin", "LeastLoad", "PrefixHash", "PrefixCache")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""
WIDTH = 80
"""Columns of the output, unless the terminal has more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `extproc demo`; return its exit code."""
    parsed = parser().parse_args(arguments)
    if not parsed.report.absolute().parent.is_dir():
        return complain(f"extproc demo: --report {parsed.report}: there is no such directory")
    workload = Workload(users=parsed.users, turns=parsed.turns)
    try:
        return asyncio.run(_demo(workload, output_width(), parsed.report))
    except NotReadyError as error:
        return complain(f"extproc demo: {error}")
    except KeyboardInterrupt:
        return INTERRUPTED


def parser() -> Parser:
    """Return the parser of `extproc demo`."""
    found = Parser(
        prog="extproc demo",
        description="Sends the same multi-turn chat traffic through Envoy and the sidecar to "
        "stand-in vLLM replicas under each strategy, and compares them.",
        examples={
            "extproc demo": "run the demo",
            "extproc demo --users 20 --turns 3": "run a shorter one",
        },
        exits={
            0: "every request got a complete response",
            1: "a request failed",
            2: "bad arguments, or a part of the stack did not start",
            130: "Ctrl-C",
        },
    )
    _count(found, "--users", Workload.users, "users that send messages")
    _count(found, "--turns", Workload.turns, "messages of each user")
    found.add_argument(
        "--report",
        type=Path,
        default=Path("extproc-demo.html"),
        metavar="FILE.html",
        help="web page with charts of the runs (default: %(default)s)",
    )
    return found


def _count(parser: argparse.ArgumentParser, name: str, default: int, text: str) -> None:
    text = f"{text} (default: %(default)s)"
    parser.add_argument(name, type=_at_least_one, default=default, metavar="N", help=text)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def output_width() -> int:
    """Return the columns of the output: 80 if it is no terminal or a narrow one."""
    return max(WIDTH, get_terminal_size().columns) if sys.stdout.isatty() else WIDTH


async def _demo(workload: Workload, width: int, page: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="extproc-demo-") as directory:
        async with AsyncExitStack() as cleanup:
            stack = await start(cleanup, Path(directory))
            envoy = stack.gateway.envoy
            print(*introduction(envoy.url, workload, width), sep="\n", flush=True)
            print(f"Status page: {stack.gateway.sidecar.admin}/\n", flush=True)
            console = Console(width=width)
            results = await _compare_strategies(stack, workload, console)
            expected = workload.requests * len(results)
            await until(lambda: len(envoy.access_log()) >= expected, 10, "the access log")
            print(*report(results, envoy.access_log(), width), "", sep="\n", flush=True)
            one = replace(results[-1], strategy="one")
            several = await _compare_gateways(stack.replicas, Path(directory), workload, console)
            print(*report_on_gateways([one, *several], width), sep="\n")
            print("", *_report(page, results, workload, envoy.access_log()), sep="\n")
    return 1 if any(result.run.failed() for result in [*results, *several]) else 0


def _report(
    page: Path, results: Sequence[Result], workload: Workload, log: Sequence[Mapping[str, object]]
) -> list[str]:
    """Write the report, and return the lines that say where it is."""
    try:
        write_page(page, results, workload, log)
    except OSError as error:
        return [f"No report: {error.filename or page}: {error.strerror}"]
    return [f"Report with charts: {page}"]


async def _compare_strategies(stack: Stack, workload: Workload, console: Console) -> list[Result]:
    """Run the same workload under each strategy."""
    results = []
    with _progress(console) as progress:
        for strategy in STRATEGIES:
            task = progress.add_task(strategy, total=workload.requests)
            await stack.use(strategy)
            run = _measure(
                [stack.gateway], stack.replicas, workload, partial(progress.advance, task)
            )
            results.append(Result(strategy, *await run))
    return results


async def _compare_gateways(
    replicas: StandInFleet, directory: Path, workload: Workload, console: Console
) -> list[Result]:
    """Run the same workload through several gateways that share nothing, or their state."""
    results = []
    with _progress(console) as progress:
        for name in ("three, alone", "three, sharing"):
            task = progress.add_task(name, total=workload.requests)
            async with AsyncExitStack() as cleanup:
                own = directory / name
                own.mkdir()
                url = await _shared_state(cleanup, own) if name == "three, sharing" else ""
                gateways = await start_gateways(cleanup, own, replicas, url)
                await replicas.reset()
                run = _measure(gateways, replicas, workload, partial(progress.advance, task))
                results.append(Result(name, *await run))
    return results


async def _shared_state(cleanup: AsyncExitStack, directory: Path) -> str:
    """Start a Valkey server and return its URL."""
    server = Valkey(directory)
    cleanup.push_async_callback(server.stop)
    await server.start()
    return server.url


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


async def _measure(
    gateways: Sequence[Gateway],
    replicas: StandInFleet,
    workload: Workload,
    advance: Callable[[], None],
) -> tuple[Run, float, float]:
    """Return the workload's run, the hit rate and the spread."""
    before = await replicas.requests()
    run = await drive([one.envoy.url for one in gateways], MODEL, workload, advance)
    after = await replicas.requests()
    served = [after[address]["total"] - before[address]["total"] for address in after]
    return run, await replicas.hit_rate(), max(served) / fmean(served)
