"""Scenarios: a workload, a fleet and its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extproc.core.schema import LoadBalancingSpec
from extproc.lab.engine.profile import Profile
from extproc.lab.simulation.client import IDEAL, SINGLE_THREADED, ClientCosts
from extproc.lab.simulation.events import Event
from extproc.lab.simulation.prompts import EVERYTHING, SHIPPED
from extproc.lab.simulation.sidecars import Routing
from extproc.lab.workloads.workload import Workload


@dataclass(frozen=True)
class Scenario:
    """The input of a simulation."""

    workload: Workload
    profile: Profile
    routing: Routing
    replicas: int = 8
    sidecars: int = 1
    """Number of sidecars. Each request goes to a random one."""

    client: ClientCosts = IDEAL
    seed: int = 0

    answers_shown: bool = False
    """True if sidecars see the start of a response. Envoy shows it only to endpoint pickers."""

    events: Sequence[Event] = ()
    """Engines that join and leave. An engine whose first event is a Join is absent at the start."""

    slow: Mapping[int, float] = field(default_factory=dict)
    """Factors on the profile's times for slow engines, by the number of the engine."""

    others: Mapping[int, Profile] = field(default_factory=dict)
    """Profiles of engines that differ, by the number of the engine.

    Their blocks must have the same size, because one workload has one chain of blocks.
    """

    share: float | None = None
    """Seconds after which the sidecars know of each other's requests; None if they share no state.
    """

    delay: float = 0.0
    """Longest time that a request takes from the sidecar to its engine, in seconds, and the news of
    its end to the sidecar. Each takes a random time of up to this."""

    def __post_init__(self) -> None:
        sizes = {one.block_size for one in (self.profile, *self.others.values())}
        if len(sizes) > 1:
            raise ValueError(f"all engines need blocks of one size, not of {sorted(sizes)}")

    @classmethod
    def of(
        cls,
        workload: Workload,
        engine: Profile,
        load_balancing: LoadBalancingSpec,
        *,
        limited_client: bool = False,
        seed: int = 0,
        published_rule: str = "",
    ) -> Scenario:
        """Return the workload's own fleet, with or without the client's limits.

        A published rule, if one is named, decides instead of the strategy. It sees what its
        publication assumes: the moment of each first token, and whole bodies.
        """
        shown = EVERYTHING if published_rule else SHIPPED
        return cls(
            workload,
            engine,
            Routing(load_balancing, workload.adapters, shown=shown, published_rule=published_rule),
            workload.replicas,
            workload.sidecars,
            SINGLE_THREADED if limited_client else IDEAL,
            seed,
            answers_shown=bool(published_rule),
        )
