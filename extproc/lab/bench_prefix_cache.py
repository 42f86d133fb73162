"""What PrefixCache costs beside PrefixHash: prompts, decisions, memory; part of `make bench`.

CPU time of this process, the best of several rounds in which the two take turns: neighbours
only ever make it longer. The garbage collector runs as it does in the product, and in each decision
another request ends, so that as many are in flight as a loaded fleet has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import cycle
from pathlib import Path
from random import Random
from time import process_time
from typing import TypeVar

from rich.table import Table

from extproc.core.blocks import BLOCK_BYTES, Prompt
from extproc.core.body import Document, read_json
from extproc.core.catalog import Catalog, revise
from extproc.core.ledger import Lease, Ledger
from extproc.core.prefix_index import RUN_BLOCKS, PrefixIndex
from extproc.core.router import Placement, Router
from extproc.core.signals import Load, Report, Signals
from extproc.core.spec import ModelsSpec
from extproc.core.strategies import build

T = TypeVar("T")

STRATEGIES = ("PrefixCache", "PrefixHash")
ENDPOINTS = (10, 100, 200)
BLOCKS = 256
"""Of each prompt: what Envoy shows of a large body."""

SYSTEM_PROMPTS, USERS = 20, 10
_SYSTEM_BYTES = 12_000
_ROUNDS = 9
_IN_FLIGHT = 4  # for each endpoint
_CACHE = Report(Load(1, 0.5), 10, block_size=16, blocks=28_000)

INDEX_ENDPOINTS = 200
ADDED = (256, 4, 1)
"""Blocks that a prompt adds to what is known: a new long one, a turn of a chat, a short one."""


class _Fleet:
    """A router with one model on so many endpoints, and requests that come and go."""

    def __init__(self, strategy: str, endpoints: int) -> None:
        rng, ledger = Random(1), Ledger()
        self.addresses = [f"10.0.{i // 250}.{i % 250 + 1}:8000" for i in range(endpoints)]
        self.signals = Signals(lambda: 0.0, ledger)
        self.router = Router(ledger, signals=self.signals, rng=rng)
        load_balancing = {"strategy": strategy}
        model = {"name": "m", "endpoints": self.addresses, "loadBalancing": load_balancing}
        spec = ModelsSpec.model_validate({"models": [model]})
        catalog = revise(Catalog(), spec.models, lambda one: build(one, rng, self.signals))
        self.router.publish(catalog)
        self.signals.follow(self.addresses)
        for address in self.addresses:
            self.signals.reported(address, _CACHE, 0)
        self._leases: deque[Lease] = deque()

    def place(self, document: Document | None) -> Placement:
        """The request as the strategy sees it."""
        return self.router.place("m", document, {})

    def decide(self, placement: Placement) -> None:
        """One request comes and, once there are enough, the oldest goes."""
        self._leases.append(self.router.decide(placement).lease)
        if len(self._leases) > _IN_FLIGHT * len(self.addresses):
            self._leases.popleft().release()

    def fill(self, rng: Random) -> None:
        """Other prompts fill the index of every endpoint, so that each new one evicts."""
        prefixes = self.signals.prefixes
        for address in self.addresses:
            before = -1
            while prefixes.size(address) > before:
                before = prefixes.size(address)
                prefixes.sent(address, _blocks(rng, BLOCKS))


def bodies() -> list[bytes]:
    """The heads of requests that share system prompts."""
    return [_body(number % SYSTEM_PROMPTS, number) for number in range(SYSTEM_PROMPTS * USERS)]


def _body(system: int, user: int) -> bytes:
    shared = f"system {system} " + "lorem ipsum " * (_SYSTEM_BYTES // 12)
    own = f"user {user} " + "dolor sit amet " * (BLOCKS * BLOCK_BYTES // 15)
    own = own[: BLOCKS * BLOCK_BYTES - len(shared)]  # with the roles it is a little more
    messages = [{"role": "system", "content": shared}, {"role": "user", "content": own}]
    return json.dumps({"model": "m", "messages": messages}).encode()[:-3]


def _blocks(rng: Random, number: int) -> list[int]:
    return [rng.getrandbits(64) for _ in range(number)]


def _new(placement: Placement, rng: Random) -> Placement:
    """The same request with a prompt that nobody has seen."""
    prompt = Prompt(_blocks(rng, BLOCKS), BLOCKS * BLOCK_BYTES)
    return placement._replace(prompt=prompt, key=rng.getrandbits(64))


def best(ways: Mapping[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Of each way the microseconds for one call, in its best round of so many calls."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):
        for name, call in ways.items():
            started = process_time()
            for _ in range(times):
                call()
            found[name] = min(found[name], (process_time() - started) / times * 1e6)
    return found


def _each(call: Callable[[T], object], values: Iterator[T]) -> Callable[[], object]:
    return lambda: call(next(values))


def table(times: int) -> Table:
    """Reading and deciding."""
    rows = Table(title=f"PrefixCache: prompts of {BLOCKS} blocks; CPU us per request")
    rows.add_column("endpoints", justify="right")
    rows.add_column("step")
    for column in (*STRATEGIES, "ratio"):
        rows.add_column(column, justify="right")
    heads = bodies()
    documents = [read_json(head, complete=False) for head in heads]
    for what, costs in _reading(heads, documents, times).items():
        rows.add_row("-", what, *_shown(costs))
    for endpoints in ENDPOINTS:
        rows.add_section()
        for what, costs in _deciding(documents, endpoints, times).items():
            rows.add_row(str(endpoints), what, *_shown(costs))
    return rows


def _shown(costs: Mapping[str, float]) -> list[str]:
    ours, others = (costs[strategy] for strategy in STRATEGIES)
    return [f"{ours:.0f}", f"{others:.0f}", f"{ours / others:.1f}"]


def _reading(
    heads: Sequence[bytes], documents: Sequence[Document], times: int
) -> dict[str, dict[str, float]]:
    fleets = {strategy: _Fleet(strategy, 2) for strategy in STRATEGIES}

    def parse(head: bytes) -> object:
        return read_json(head, complete=False)

    return {
        "parse the body": best(dict.fromkeys(fleets, _each(parse, cycle(heads))), times),
        "read the prompt": best(
            {name: _each(fleet.place, cycle(documents)) for name, fleet in fleets.items()}, times
        ),
    }


def _deciding(
    documents: Sequence[Document], endpoints: int, times: int
) -> dict[str, dict[str, float]]:
    fleets = {strategy: _Fleet(strategy, endpoints) for strategy in STRATEGIES}
    warm, new = {}, {}
    for name, fleet in fleets.items():
        rng = Random(2)
        if name == "PrefixCache":
            fleet.fill(rng)
        known = [fleet.place(document) for document in documents]
        for placement in known * 3:
            fleet.decide(placement)
        unknown = [_new(known[0], rng) for _ in range(times * _ROUNDS)]
        warm[name] = _each(fleet.decide, cycle(known))
        new[name] = _each(fleet.decide, iter(unknown))
    return {"decide, prompts seen before": best(warm, times), "decide, new": best(new, times)}


def memory_table(blocks: int) -> Table:
    """What an index takes that has room for so many blocks, each in a process of its own."""
    title = f"PrefixCache: memory of room for {blocks:,} blocks on {INDEX_ENDPOINTS} endpoints"
    rows = Table(title=title)
    for column in ("blocks that a prompt adds", "blocks", "index MB", "after as many more"):
        rows.add_column(column, justify="right")
    rows.add_column("process MB", justify="right")
    for added in ADDED:
        command = [sys.executable, "-m", "extproc.lab.bench_prefix_cache"]
        command += ["--blocks", str(blocks), "--added", str(added)]
        printed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        before, full, turned_over, held = json.loads(printed)
        used = (f"{each:.0f}" for each in (full - before, turned_over - before, turned_over))
        rows.add_row(str(added), f"{held:,}", *used)
    return rows


def measure_memory(blocks: int, added: int) -> list[float]:
    """Megabytes of this process before, with the index full, and after as many blocks more.

    And, last, how many blocks it then has: each prompt is a run of its own, which takes room, too.
    """
    import_module("extproc.app")  # in memory, as in the product
    rng, index = Random(3), PrefixIndex(blocks)
    addresses = [f"10.0.0.{number}:8000" for number in range(INDEX_ENDPOINTS)]
    for address in addresses:
        index.resize(address, blocks * BLOCK_BYTES)  # as much as its share allows
    found = [_resident()]
    for _ in range(2):
        for number in range(-(-blocks // (added + RUN_BLOCKS))):
            index.sent(addresses[number % INDEX_ENDPOINTS], _blocks(rng, added))
        found.append(_resident())
    return [*found, len(index)]


def _resident() -> float:
    """Megabytes of memory in use."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of the process whose memory is measured."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench_prefix_cache")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--added", type=int, required=True, help="by each prompt")
    parsed = parser.parse_args(arguments)
    print(json.dumps(measure_memory(parsed.blocks, parsed.added)))


if __name__ == "__main__":
    main()
