"""Models documents and what they are applied to."""

from __future__ import annotations

from random import Random

from extproc.adapters.configuration import Configuration
from extproc.adapters.telemetry import Telemetry
from extproc.core.ledger import Ledger
from extproc.core.router import Router

LLAMA = b"models:\n- name: llama\n  endpoints: [10.0.0.1:8000, 10.0.0.2:8000]\n"
QWEN = b"models:\n- name: qwen\n  endpoints: [10.0.0.3:8000]\n"
BROKEN = b"models: [\n"


class Served:
    """A configuration with its router and metrics."""

    def __init__(self) -> None:
        self.router = Router(Ledger())
        self.telemetry = Telemetry(self.router)
        self.configuration = Configuration(self.router, self.telemetry, Random(0))

    @property
    def models(self) -> list[str]:
        return list(self.router.catalog.models)

    def sample(self, name: str, **labels: str) -> float:
        """The value of one line of the metrics."""
        return sample(self.telemetry, name, **labels)


def sample(telemetry: Telemetry, name: str, **labels: str) -> float:
    """The value of one line of the metrics; -1 where there is no such line."""
    listed = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    start = f"{name}{{{listed}}} " if labels else f"{name} "
    for line in telemetry.exposition().decode().splitlines():
        if line.startswith(start):
            return float(line.removeprefix(start))
    return -1
