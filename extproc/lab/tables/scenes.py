"""Scenes of the page on prefix caches: workloads and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from extproc.lab.engine import profile
from extproc.lab.engine.profile import Profile
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

    kinds: Sequence[str] = ()
    """Profiles of the engines by turns; if empty, all have the workload's own."""

    changes: Mapping[str, Any] = {}
    """Fields of all profiles that differ."""

    def engines(self, usual: str, replicas: int) -> tuple[Profile, dict[int, Profile]]:
        """Return the profile of most engines, and those of the others by number.

        `usual` is the workload's own profile.
        """
        kinds = [replace(profile.named(name), **self.changes) for name in (self.kinds or (usual,))]
        numbers = range(replicas) if len(kinds) > 1 else ()
        return kinds[0], {one: kinds[one % len(kinds)] for one in numbers if one % len(kinds)}

    @property
    def is_recorded(self) -> bool:
        """True if replaying it needs a file."""
        return self.workload == "mooncake"


_MOONCAKE = Scene("mooncake", sessions=3_000)

CHAT = {
    **{name: Scene(name) for name in (f"kubeai-chat-{n}" for n in (800, 1_600, 3_200, 8_000))},
    # Running requests almost fill the caches, so a rule that lets some endpoints fill up loses.
    **{
        f"kubeai-chat-1600 on {engines}": Scene("kubeai-chat-1600", replicas=engines)
        for engines in (7, 6)
    },
}
THREADS = {
    name: Scene(name, sessions=2_500) for name in (f"kubeai-threads-{n}" for n in (300, 600, 1_200))
}
MOONCAKE = {f"mooncake at {pace:g}": _MOONCAKE._replace(pace=pace) for pace in (2.0, 3.0, 4.0)}
SAAS = {
    "saas": Scene("saas"),
    "saas at 1.25": Scene("saas", 1.25),
    "saas with KV offloading": Scene("saas", changes={"host_kv_tokens": 400_000}),
}
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

_H100, _A100, _L40S = (f"{name}-llama-3.1-8b" for name in ("h100", "a100", "l40s"))
_TWO, _THREE = (_H100, _A100), (_H100, _A100, _L40S)
_WHOLE = {"chunked_prefill": False}
_DECODING_FIRST = {"max_prompt_tokens_with_decoding": 512}

SHARED_PREFIXES: Mapping[str, Scene] = {
    **{name: Scene(name) for name in ("agents-20", "agents-40", "sub-agents")},
    **{name: Scene(name) for name in ("document-batch-1", "document-batch-4")},
    **{name: Scene(name) for name in ("hot-fleet-64", "hot-fleet-64-chat")},
    "hot-fleet-200": Scene("hot-fleet-200", seeds=(0,)),
    **{name: Scene(name) for name in ("deep-rag", "tool-agents", "chat-bursts", "instants")},
    "agents-20, one dies and returns": Scene("agents-20", events=(Leave(150, 0), Join(180, 0))),
    "hot-fleet-64, from 24 engines": Scene(
        "hot-fleet-64",
        0.5,
        sessions=3_000,
        events=[Join(5.0 + 0.5 * n, 24 + n) for n in range(40)],
    ),
    "agents-20 on two kinds": Scene("agents-20", kinds=_TWO),
    "agents-20 on three kinds": Scene("agents-20", kinds=_THREE),
    "deep-rag on two kinds": Scene("deep-rag", 0.5, sessions=1_000, kinds=_TWO),
    "deep-rag on three kinds": Scene("deep-rag", 0.45, sessions=1_000, kinds=_THREE),
    "agents-20 without chunks": Scene("agents-20", changes=_WHOLE),
    "chat-bursts without chunks": Scene("chat-bursts", changes=_WHOLE),
    "agents-20, decoding first": Scene("agents-20", changes=_DECODING_FIRST),
    "deep-rag, decoding first": Scene("deep-rag", 0.6, changes=_DECODING_FIRST),
}
"""Scenes in which requests share long prefixes, or arrive in bursts.

Two kinds are H100 and A100 by turns, three also L40S. Without chunks means without chunked prefill.
Decoding first means at most 512 prompt tokens in a step that also decodes. In "from 24 engines" the
other 40 join during the hot load.
"""

SCENES = {**WORKLOADS, **ADVERSARIES, **SHARED_PREFIXES}
