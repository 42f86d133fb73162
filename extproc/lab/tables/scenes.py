"""Scenes of the page on prefix caches: workloads and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from extproc.lab.simulation.events import Event, Join, Leave


class Scene(NamedTuple):
    """A workload on a fleet."""

    workload: str
    pace: float = 1.0
    sessions: int | None = None
    """The first sessions only, if not all."""

    seeds: Sequence[int] = (0, 1, 2)
    replicas: int | None = None
    events: Sequence[Event] = ()
    slow: Mapping[int, float] = {}

    @property
    def is_recorded(self) -> bool:
        """True if replaying it needs a file."""
        return self.workload == "mooncake"


_MOONCAKE = Scene("mooncake", sessions=3_000)

CHAT = {name: Scene(name) for name in (f"kubeai-chat-{n}" for n in (800, 1_600, 3_200, 8_000))}
THREADS = {
    name: Scene(name, sessions=2_500) for name in (f"kubeai-threads-{n}" for n in (300, 600, 1_200))
}
MOONCAKE = {f"mooncake at {pace:g}": _MOONCAKE._replace(pace=pace) for pace in (2.0, 3.0, 4.0)}
SAAS = {"saas": Scene("saas"), "saas at 1.25": Scene("saas", 1.25)}
CODEGEN = {"codegen": Scene("codegen"), "codegen at 2": Scene("codegen", 2.0)}
LORA = {name: Scene(name) for name in ("lora-0", "lora-4", "lora-10")}

WORKLOADS = {**CHAT, **THREADS, **MOONCAKE, **SAAS, **CODEGEN, **LORA}
"""Scenes by the names of their rows."""

ADVERSARIES: Mapping[str, Scene] = {
    **{name: Scene(name) for name in ("one-prefix", "all-distinct", "hot-prefix", "heavy-tail")},
    "a slow endpoint": Scene("heavy-tail", 0.8, slow={0: 3.0}),
    "one dies and returns": Scene("heavy-tail", 0.8, events=(Leave(60.0, 0), Join(90.0, 0))),
    "200 endpoints": Scene("hot-prefix", 10.0, seeds=(0,), replicas=200),
    "from 2 to 16": Scene(
        "heavy-tail", replicas=16, events=[Join(20.0 + 2 * n, 2 + n) for n in range(14)]
    ),
}
"""Fleets have eight endpoints unless the scene says otherwise. A slow one has a third of the speed.
"""

SCENES = {**WORKLOADS, **ADVERSARIES}
