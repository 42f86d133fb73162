"""A sidecar in which a published rule replaces the strategies, for comparison on real engines.

python -m extproc.lab.real_vllm.rule_sidecar RULE serve ARGUMENT...
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from extproc import cli
from extproc.adapters.configuration import configuration
from extproc.core.fleet.signals import Signals
from extproc.core.schema import LoadBalancingSpec
from extproc.core.strategies import Strategy
from extproc.lab import published_rules
from extproc.lab.stack.sidecar import FileSidecar


class RuleSidecar(FileSidecar):
    """A sidecar whose models all have the published rule of this name."""

    def __init__(self, rule: str, models: Mapping[str, Any], directory: Path) -> None:
        super().__init__(models, directory)
        _, _, _, *arguments = self._arguments  # of `python -m extproc`
        self._arguments = [sys.executable, "-m", __name__, rule, *arguments]


def main(rule: str, arguments: Sequence[str]) -> int:
    """Run `extproc` with the rule of this name, and return the exit code."""

    def build(spec: LoadBalancingSpec, rng: Random, signals: Signals) -> Strategy:
        return published_rules.build(rule, spec, rng, signals)

    with mock.patch.object(configuration, "build", build):
        return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
