"""The cost of PrefixCache compared with PrefixHash: prompts, decisions, memory.

CPU time of this process, the best of several rounds in which the two alternate, because other
processes can only add time. The garbage collector runs as in the product. Each decision ends an
earlier request, so that as many are in flight as on a loaded fleet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import cycle
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TypeVar

from extproc.core.fleet.held_blocks import RUN_BLOCKS
from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.request.json_document import Document, parse_document
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.lab.bench.grid import Grid
from extproc.lab.bench.routers import (
    BLOCKS,
    ROUNDS,
    BusyRouter,
    best,
    bodies,
    documents,
    random_blocks,
)

T = TypeVar("T")

STRATEGIES = ("PrefixCache", "PrefixHash")
ENDPOINTS = (10, 100, 200)

SIDECARS = 4

INDEX_ENDPOINTS = 200
ADDED = (256, 4, 1)
"""New blocks of a prompt: a new long prompt, a turn of a chat, a short prompt."""


def _new(resolved: ResolvedRequest, rng: Random) -> ResolvedRequest:
    """Return the request with a prompt that is new to the index."""
    prompt = Prompt(random_blocks(rng, BLOCKS), BLOCKS * BLOCK_BYTES)
    return resolved._replace(prompt=prompt, key=rng.getrandbits(64))


def _each(call: Callable[[T], object], values: Iterator[T]) -> Callable[[], object]:
    return lambda: call(next(values))


def grid(times: int, numbers: Sequence[int] = ENDPOINTS) -> Grid:
    """Return the times to read a prompt, and to decide by number of endpoints."""
    heads, known = bodies(), documents()
    reading = _reading(heads, known, times)
    rows = [["-", what, *_shown(costs)] for what, costs in reading.items()]
    for endpoints in numbers:
        deciding = _deciding(known, endpoints, times)
        rows.append([])
        rows += [[str(endpoints), what, *_shown(costs)] for what, costs in deciding.items()]
    title = f"PrefixCache: prompts of {BLOCKS} blocks; CPU us per request"
    return Grid(title, ["endpoints", "step", *STRATEGIES, "ratio"], rows, left=2)


def _shown(costs: Mapping[str, float]) -> list[str]:
    ours, others = (costs[strategy] for strategy in STRATEGIES)
    return [f"{ours:.0f}", f"{others:.0f}", f"{ours / others:.1f}"]


def _reading(
    heads: Sequence[bytes], documents: Sequence[Document], times: int
) -> dict[str, dict[str, float]]:
    fleets = {strategy: BusyRouter(strategy, 2) for strategy in STRATEGIES}

    def parse(head: bytes) -> object:
        return parse_document(head, complete=False)

    return {
        "parse the body": best(dict.fromkeys(fleets, _each(parse, cycle(heads))), times),
        "read the prompt": best(
            {name: _each(fleet.resolve, cycle(documents)) for name, fleet in fleets.items()}, times
        ),
    }


def _deciding(
    documents: Sequence[Document], endpoints: int, times: int
) -> dict[str, dict[str, float]]:
    known, new = "decide, known prompt", "decide, new prompt"
    return {
        known: _each_decides(documents, endpoints, times),
        f"{known}, {SIDECARS} sidecars": _each_decides(documents, endpoints, times, SIDECARS),
        new: _each_decides(documents, endpoints, times, new=times * ROUNDS),
    }


def _each_decides(
    documents: Sequence[Document], endpoints: int, times: int, sidecars: int = 1, new: int = 0
) -> dict[str, float]:
    """Return the microseconds of each strategy for known prompts, or for that number of new ones.

    Each has fleets of its own, because new prompts evict known ones.
    """
    ways = {}
    for strategy in STRATEGIES:
        fleet, rng = BusyRouter(strategy, endpoints, sidecars), Random(2)
        if strategy == "PrefixCache":
            fleet.fill(rng)
        known = [fleet.resolve(document) for document in documents]
        for resolved in known * 3:
            fleet.decide(resolved)
        unknown = [_new(known[0], rng) for _ in range(new)]
        ways[strategy] = _each(fleet.decide, iter(unknown) if new else cycle(known))
    return best(ways, times)


def memory_grid(blocks: int, prompts: Sequence[int] = ADDED) -> Grid:
    """Return the memory of an index by the new blocks of a prompt, each in its own process."""
    rows = []
    for added in prompts:
        command = [sys.executable, "-m", "extproc.lab.bench.prefix_cache"]
        command += ["--blocks", str(blocks), "--added", str(added)]
        printed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        before, full, turned_over, held = json.loads(printed)
        used = (f"{each:.0f}" for each in (full - before, turned_over - before, turned_over))
        rows.append([str(added), f"{held:,}", *used])
    title = f"PrefixCache: memory of room for {blocks:,} blocks on {INDEX_ENDPOINTS} endpoints"
    headings = ["new blocks per prompt", "blocks", "index MB", "after as many more blocks"]
    return Grid(title, [*headings, "process MB"], rows, left=0)


def measure_memory(blocks: int, added: int) -> list[float]:
    """Return this process's megabytes: before, with a full index, and after as many more blocks.

    The last figure is the number of blocks. Each prompt is a separate run of blocks, which takes
    room too.
    """
    import_module("extproc.app")  # in memory, as in the product
    rng, index = Random(3), PrefixIndex(perf_counter, blocks)
    addresses = [f"10.0.0.{number}:8000" for number in range(INDEX_ENDPOINTS)]
    for address in addresses:
        index.resize(address, blocks * BLOCK_BYTES)  # as much as its share allows
    found = [_resident()]
    for _ in range(2):
        for number in range(-(-blocks // (added + RUN_BLOCKS))):
            index.sent(addresses[number % INDEX_ENDPOINTS], random_blocks(rng, added))
        found.append(_resident())
    return [*found, len(index)]


def _resident() -> float:
    """Return the megabytes of memory in use."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of the process whose memory is measured."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.prefix_cache")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--added", type=int, required=True, help="new blocks per prompt")
    parsed = parser.parse_args(arguments)
    print(json.dumps(measure_memory(parsed.blocks, parsed.added)))


if __name__ == "__main__":
    main()
