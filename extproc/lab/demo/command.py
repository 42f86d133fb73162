"""`extproc demo`: chat traffic through Envoy and the sidecar, one strategy after the other."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from extproc.commands.console import Parser, complain
from extproc.lab.demo.chat import Workload, drive
from extproc.lab.demo.report import Result, introduction, report
from extproc.lab.demo.stack import MODEL, Stack, start
from extproc.lab.stack.processes import NotReadyError, until

STRATEGIES = ("RoundRobin", "LeastLoad", "PrefixHash", "PrefixCache")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""
WIDTH = 80
"""Columns of the output, unless the terminal has more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `extproc demo`; return its exit code."""
    parser = Parser(
        prog="extproc demo",
        description="Sends the same multi-turn chat traffic through Envoy and the sidecar to "
        "stand-in vLLM replicas under each strategy, and compares them. Exit code 0 if every "
        "request got a complete response, 1 if not, 2 if a part of the stack did not start.",
    )
    _count(parser, "--users", Workload.users, "users that send messages")
    _count(parser, "--turns", Workload.turns, "messages of each user")
    parsed = parser.parse_args(arguments)
    workload = Workload(users=parsed.users, turns=parsed.turns)
    try:
        return asyncio.run(_demo(workload, output_width()))
    except NotReadyError as error:
        return complain(f"extproc demo: {error}")
    except KeyboardInterrupt:
        return INTERRUPTED


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


async def _demo(workload: Workload, width: int) -> int:
    with tempfile.TemporaryDirectory(prefix="extproc-demo-") as directory:
        async with AsyncExitStack() as cleanup:
            stack = await start(cleanup, Path(directory))
            print(*introduction(stack.envoy.url, workload, width), sep="\n", flush=True)
            results = await _compare(stack, workload, Console(width=width))
            expected = workload.requests * len(results)
            await until(lambda: len(stack.envoy.access_log()) >= expected, 10, "the access log")
            print(*report(results, stack.envoy.access_log(), width), sep="\n")
    return 1 if any(result.run.failed() for result in results) else 0


async def _compare(stack: Stack, workload: Workload, console: Console) -> list[Result]:
    """Run the same workload under each strategy."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    results = []
    with Progress(*columns, console=console) as progress:
        for strategy in STRATEGIES:
            task = progress.add_task(strategy, total=workload.requests)
            await stack.use(strategy)
            results.append(
                await _measure(stack, strategy, workload, partial(progress.advance, task))
            )
    return results


async def _measure(
    stack: Stack, strategy: str, workload: Workload, advance: Callable[[], None]
) -> Result:
    before = await stack.replicas.requests()
    run = await drive(stack.envoy.url, MODEL, workload, advance)
    after = await stack.replicas.requests()
    served = [after[address]["total"] - before[address]["total"] for address in after]
    hit_rate = await stack.replicas.hit_rate()
    return Result(strategy, run, hit_rate, spread=max(served) / fmean(served))
