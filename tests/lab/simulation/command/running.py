"""Arguments, results and a models document for tests of `extproc simulate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from extproc.lab.measures import published
from extproc.lab.simulation.simulation import Scenario

FEW = ("--workload", "kubeai-chat-800", "--sessions", "5")
PUBLISHED = str(Path(published.__file__).with_name("published") / "kubeai-chat.yaml")
ONE = (*FEW, "--strategy", "Random")

DOCUMENT = """
models:
- name: llama
  endpoints: [192.0.2.1:8000, 192.0.2.2:8000, 192.0.2.3:8000]
  loadBalancing: {strategy: PrefixHash, prefixHash: {meanLoadFactor: 150, prefixCharLength: 500}}
- name: canary
  split: {targets: [{model: llama, weight: 9}, {model: chained, weight: 1}]}
- name: chained
  service: {namespace: models, name: vllm, port: http}
  loadBalancing: {strategy: Chain, chain: [{filter: LeastQueue, slack: 3}]}
"""


class Outcome(NamedTuple):
    code: object
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        """Return the words of each printed line."""
        return [line.split() for line in self.out.splitlines() if line.strip()]


Simulate = Callable[..., Outcome]


def no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def figures(text: str) -> list[dict[str, Any]]:
    """Return the runs in a JSON output."""
    found: list[dict[str, Any]] = json.loads(text, parse_constant=no_constant)["runs"]
    return found


def strategies(fleets: list[Scenario]) -> list[str]:
    return [one.routing.load_balancing.strategy for one in fleets]
