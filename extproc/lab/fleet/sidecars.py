"""The sidecars of a simulated fleet: the product's own router, ledger, signals and strategies.

Each sidecar counts only its own requests and reads the engines' metrics for itself, as in life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from extproc.adapters.vllm.schedule import Plan, plans
from extproc.core.catalog import Catalog, revise
from extproc.core.ledger import Ledger
from extproc.core.router import Decision, Router
from extproc.core.signals import Load, Report, Signals
from extproc.core.spec import LoadBalancingSpec, ModelSpec
from extproc.core.strategies import build
from extproc.lab.fleet.timeline import Timeline
from extproc.lab.replica import Replica
from extproc.lab.workloads.text import document
from extproc.lab.workloads.workload import Api, Turn

MODEL = "simulated"

_JITTER = 0.1
"""Of the time between two readings, as the product's scraper has it."""


@dataclass(frozen=True)
class Routing:
    """How the sidecars are configured."""

    load_balancing: LoadBalancingSpec

    adapters: Sequence[str] = ()
    """LoRA adapters that every engine has."""

    addresses: Sequence[str] = ()
    """Of the engines, which give them their places on the ring; without any they are made up."""

    def endpoints(self, replicas: int) -> list[str]:
        """The addresses of so many engines."""
        made_up = (f"10.0.{one // 250}.{one % 250 + 1}:8000" for one in range(replicas))
        return list(self.addresses) or list(made_up)


class Sidecar:
    """One of them, in front of all engines."""

    def __init__(
        self, timeline: Timeline, replicas: Sequence[Replica], routing: Routing, seed: str
    ) -> None:
        self._timeline = timeline
        self._rng = Random(f"readings {seed}")
        self._spec = routing.load_balancing
        self._engines = dict(zip(routing.endpoints(len(replicas)), replicas, strict=True))
        rng = Random(f"strategy {seed}")
        self._ledger = Ledger()
        self._signals = Signals(timeline.clock, self._ledger.loads)
        self._signals.follow(self._engines.keys())
        self._router = Router(self._ledger, signals=self._signals, rng=rng, fallbacks=False)
        spec = ModelSpec(
            name=MODEL,
            endpoints=tuple(self._engines),
            adapters=tuple(routing.adapters),
            loadBalancing=routing.load_balancing,
        )
        make = partial(build, rng=rng, signals=self._signals)
        self._router.publish(revise(Catalog(), [spec], make))
        self._read_engines()

    def decide(self, api: Api, turn: Turn) -> Decision:
        """Where a request goes, with its lease."""
        shown = document(api, turn.prompt, self._spec.prefix_hash.prefix_char_length)
        return self._router.decide(self._router.place(turn.adapter or MODEL, shown, {}))

    def _read_engines(self) -> None:
        asked: Mapping[str, Plan] = plans(self._router.catalog)
        for address, plan in asked.items():
            if plan.metrics:
                first = self._timeline.now + self._rng.random() * plan.busy
                self._timeline.at(first, partial(self._read, address, plan))

    def _read(self, address: str, plan: Plan) -> None:
        inflight = self._ledger.loads.get(address, 0)
        self._signals.reported(address, _report(self._engines[address]), inflight)
        interval = plan.busy if inflight else plan.idle
        wait = interval * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._timeline.at(self._timeline.now + wait, partial(self._read, address, plan))


def _report(replica: Replica) -> Report:
    """What vLLM's metrics say of this engine at this moment."""
    profile = replica.profile
    has_loras = bool(profile.max_loras)
    return Report(
        Load(replica.waiting, replica.kv_usage),
        replica.running,
        profile.max_loras or None,
        frozenset(replica.running_adapters) if has_loras else frozenset(),
        frozenset(replica.waiting_adapters) if has_loras else frozenset(),
        profile.block_size,
        profile.kv_blocks,
    )
