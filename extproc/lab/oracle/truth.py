"""The true state of a simulated fleet, and the request that is routed now."""

from __future__ import annotations

from extproc.lab.engine.replica import SimRequest
from extproc.lab.oracle.futures import Futures, Shared
from extproc.lab.oracle.memory import Memory
from extproc.lab.oracle.outlook import Outlook, outlook, with_futures
from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.simulation.engines import Engines
from extproc.lab.simulation.timeline import Timeline
from extproc.lab.workloads.workload import Turn, Workload

_NOTHING = Shared(0, 0.0)


class Truth:
    """The knowledge of the oracle. All sidecars share it."""

    def __init__(
        self,
        timeline: Timeline,
        engines: Engines,
        workload: Workload,
        ids: BlockIds,
        *,
        knows_steps: bool = True,
    ) -> None:
        """Without `knows_steps`, half of each present step counts as left."""
        self._timeline = timeline
        self._knows_steps = knows_steps
        self._engines = engines
        self._futures = Futures(workload, ids)
        self._memories = [Memory(replica) for replica in engines.replicas]
        self._shared = _NOTHING
        self._request: SimRequest | None = None

    def ask(self, turn: Turn, request: SimRequest) -> None:
        """Set the request that is routed now."""
        self._request = request
        self._futures.sent(turn)
        shared = self._futures.shared(turn, 2 * len(self._memories))
        self._shared = shared if self._wants_copies(shared) else _NOTHING

    def outlook(self, number: int) -> Outlook:
        """Return the consequences of sending the request to this engine."""
        memory, now = self._memory(number), self._timeline.now
        found = outlook(memory, self._asked, self._next_step(number, now), now)
        return with_futures(found, memory, self._asked, self._futures, self._shared)

    def cached(self, number: int) -> int:
        """Return the tokens of the request's prompt that this engine has."""
        return self._memory(number).cached_tokens(self._asked)

    def requests(self, number: int) -> int:
        """Return the requests on this engine."""
        replica = self._memory(number).replica
        return replica.running + replica.waiting

    def sent(self, number: int) -> None:
        """Record that the request goes to this engine."""
        self._memory(number).sent(self._asked, self.cached(number))

    @property
    def _asked(self) -> SimRequest:
        assert self._request is not None, "a request is routed"
        return self._request

    def _next_step(self, number: int, now: float) -> float:
        """Return the time at which the next step of this engine begins."""
        replica = self._memory(number).replica
        if replica.planned is None:
            return now
        if self._knows_steps:
            return self._engines.step_ends[number]
        return now + replica.planned.seconds(replica.profile, replica.scheduler.decoding) / 2

    def _memory(self, number: int) -> Memory:
        """Return the memory of an engine, an empty one if it was replaced."""
        replica = self._engines.replicas[number]
        if self._memories[number].replica is not replica:
            self._memories[number] = Memory(replica)
        return self._memories[number]

    def _wants_copies(self, shared: Shared) -> bool:
        """Return True if a beginning has fewer copies than later requests could use."""
        if not shared.tokens:
            return False
        everywhere = range(len(self._memories))
        copies = sum(self.cached(number) >= 0.9 * shared.tokens for number in everywhere)
        return copies < shared.share * len(self._memories)
