"""The client of a simulated fleet, with the time that it takes itself.

A benchmark client is an event loop on one core. Each turn of the loop handles everything that is
ready, one by one: received chunks, due requests, timers. Meanwhile the client notices nothing else.
So a client that streams thousands of tokens a second reads late and, worse, sends late: a pause "of
5 ms" before the next request ends only with the current turn. That limited the published runs of
PrefixHash (see docs/benchmarks.md). A client without costs is the ideal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np

from extproc.lab.engine.replica import StepTokens
from extproc.lab.measures.run import Floats
from extproc.lab.simulation.talks import Ask, Talk, talks
from extproc.lab.simulation.timeline import Timeline
from extproc.lab.workloads.arrivals import pauses
from extproc.lab.workloads.workload import Workload


@dataclass(frozen=True)
class ClientCosts:
    """Costs on the client's one core."""

    per_chunk: float = 0.0
    """Seconds to read a token."""

    per_request: float = 0.0
    """Seconds to send a request."""

    turns_per_request: int = 1
    """Turns of the loop from the decision to send until all is sent.

    The client resolves a name, connects and writes, and each step waits for the one before.
    """


IDEAL = ClientCosts()

SINGLE_THREADED = ClientCosts(per_chunk=121e-6, per_request=3.18e-3, turns_per_request=4)
"""vLLM's benchmark_serving.py on the machine of the published runs.

Fitted together with the engine to the 12 rows of KubeAI's page. In the rows of PrefixHash, which it
limited, it works 93 % of the time.
"""


class Client:
    """Sends all requests of a workload and measures the times."""

    def __init__(
        self,
        timeline: Timeline,
        workload: Workload,
        costs: ClientCosts,
        send: Callable[[Ask], None],
        rng: Random,
    ) -> None:
        number = workload.requests
        self.wanted: Floats = np.full(number, np.nan)
        self.sent: Floats = np.full(number, np.nan)
        self.first: Floats = np.full(number, np.nan)
        self.last: Floats = np.full(number, np.nan)
        self.gaps: list[Floats] = []
        self.busy_seconds = 0.0
        self.done = 0
        """Number of sessions and forks that ended or never start."""
        self._timeline = timeline
        self._workload = workload
        self._is_closed = workload.is_closed
        self._costs = costs
        self._send = send
        self._pauses = pauses(workload, rng)
        self._free_at = timeline.now
        self._awake = False
        self._ready: deque[Callable[[float], float]] = deque()
        self._talks: dict[int, Talk] = {}
        self._places = workload.concurrency or len(workload.sessions)
        self._queue: deque[Talk] = deque()
        self._coming = talks(iter(workload.sessions))
        self._all = len(workload.all_sessions)

    @property
    def over(self) -> bool:
        """True if every request was sent and answered."""
        return self.done == self._all

    def start(self) -> None:
        """Start the run now."""
        began = self._timeline.now
        if self._workload.requests_per_second is not None:
            self._soon(self._begin_next)
            return
        for talk in self._coming:
            talk.wanted += began
            self._later(talk.wanted, partial(self._begin, talk))

    def receive(self, tokens: StepTokens) -> None:
        """Receive chunks, one for each token."""
        self._soon(partial(self._read, tokens))

    def fail(self, number: int) -> None:
        """End the session of a refused request. Its forks that have not started never do."""
        self._end(self._talks.pop(number))

    def _soon(self, work: Callable[[float], float]) -> None:
        """Run `work` in the next turn of the loop. It takes its start time and returns its end."""
        self._ready.append(work)
        if not self._awake:
            self._awake = True
            self._timeline.at(self._free_at, self._turn)

    def _later(self, time: float, work: Callable[[float], float]) -> None:
        self._timeline.at(time, partial(self._soon, work))

    def _turn(self) -> None:
        """Run one turn of the event loop: everything that is ready now."""
        began = now = self._timeline.now
        for _ in range(len(self._ready)):
            now = self._ready.popleft()(now)
        self.busy_seconds += now - began
        self._free_at = now
        if self._ready:
            self._timeline.at(now, self._turn)
        elif now > began:
            self._timeline.at(now, self._rest)
        else:
            self._awake = False

    def _rest(self) -> None:
        if self._ready:
            self._turn()
        else:
            self._awake = False

    def _begin_next(self, now: float) -> float:
        """Start a session, and schedule the next one."""
        talk = next(self._coming, None)
        if talk is None:
            return now
        self._later(now + next(self._pauses), self._begin_next)
        talk.wanted = now
        return self._begin(talk, now)

    def _begin(self, talk: Talk, now: float) -> float:
        if self._places:
            self._places -= 1
            self._soon(partial(self._ask, talk))
        else:
            self._queue.append(talk)
        return now

    def _ask(self, talk: Talk, now: float) -> float:
        ask = talk.ask()
        self.wanted[ask.number] = talk.wanted
        self.sent[ask.number] = now
        self._talks[ask.number] = talk
        return self._work_on(ask, self._costs.turns_per_request, now)

    def _work_on(self, ask: Ask, turns: int, now: float) -> float:
        now += self._costs.per_request / self._costs.turns_per_request
        if turns > 1:
            self._soon(partial(self._work_on, ask, turns - 1))
        else:
            self._timeline.at(now, partial(self._send, ask))
        return now

    def _read(self, tokens: StepTokens, now: float) -> float:
        ids = np.array(tokens.request_ids, dtype=np.int64)
        times = now + self._costs.per_chunk * np.arange(1, len(ids) + 1)
        gaps = times - self.last[ids]
        if tokens.first:
            new = np.isnan(gaps)
            self.first[ids[new]] = times[new]
            gaps = gaps[~new]
        self.last[ids] = times
        self.gaps.append(gaps)
        for number in tokens.finished:
            self._later(float(self.last[number]), partial(self._answered, number))
        return now + self._costs.per_chunk * len(ids)

    def _answered(self, number: int, now: float) -> float:
        talk = self._talks.pop(number)
        ended = float(self.last[number])
        for fork in talk.fork():
            self._continue(fork, ended)
        if talk.next is None:
            self._end(talk)
        elif not talk.waits:
            if not talk.next.think_seconds:
                talk.wanted = ended
                return self._ask(talk, now)
            self._continue(talk, ended)
        return now

    def _continue(self, talk: Talk, ready: float) -> None:
        """Send the next request after the pause before it, which starts at `ready`."""
        turn = talk.next
        assert turn is not None
        talk.wanted = ready + turn.think_seconds
        self._later(talk.wanted, partial(self._ask, talk))

    def _end(self, talk: Talk) -> None:
        self.done += talk.size
        parent = talk.parent
        if parent is None:
            self._free_slot()
        elif talk.is_awaited:
            parent.waits -= 1
            if not parent.waits and parent.next is not None:
                self._continue(parent, self._timeline.now)

    def _free_slot(self) -> None:
        if self._queue:
            talk = self._queue.popleft()
            if self._is_closed:
                talk.wanted = self._timeline.now
            self._soon(partial(self._ask, talk))
        else:
            self._places += 1
