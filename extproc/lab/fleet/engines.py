"""The engines of a simulated fleet: each works step by step, and says when tokens come out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from extproc.lab.fleet.timeline import Timeline
from extproc.lab.profile import Profile
from extproc.lab.replica import Replica, SimRequest, StepTokens

OnTokens = Callable[[int, StepTokens], None]
"""The engine's number, and what its step brought."""


class Engines:
    """The stand-in's engines, driven by a timeline."""

    def __init__(self, timeline: Timeline, profile: Profile, number: int) -> None:
        self.replicas = [Replica(profile) for _ in range(number)]
        self.on_tokens: OnTokens = lambda number, tokens: None
        self._timeline = timeline
        self._began = timeline.now
        self._kv_seconds = 0.0
        self._idle = [True] * number

    def submit(self, number: int, request: SimRequest) -> None:
        """Queues a request. ValueError where the engine can never serve it."""
        self.replicas[number].submit(request)
        if self._idle[number]:
            self._idle[number] = False
            # Not at once: others that come at this moment belong into the same step.
            self._timeline.at(self._timeline.now, partial(self._begin, number))

    def kv_usage(self) -> float:
        """Share of the caches that requests held, on average since this was asked last."""
        engine_seconds = (self._timeline.now - self._began) * len(self.replicas)
        held, self._kv_seconds, self._began = self._kv_seconds, 0.0, self._timeline.now
        return held / engine_seconds if engine_seconds else 0.0

    def warm_adapters(self, adapters: list[str]) -> None:
        """Loads adapters as far as they fit, before time begins, as vLLM's `--lora-modules`."""
        for replica in self.replicas:
            for adapter in adapters[: replica.profile.max_cpu_loras or replica.profile.max_loras]:
                replica.load_adapter(adapter)
            if replica.begin_step() is not None:
                replica.finish_step()

    def _begin(self, number: int) -> None:
        seconds = self.replicas[number].begin_step()
        if seconds is None:
            self._idle[number] = True
        else:
            self._kv_seconds += self.replicas[number].kv_usage * seconds
            self._timeline.at(self._timeline.now + seconds, partial(self._finish, number))

    def _finish(self, number: int) -> None:
        tokens = self.replicas[number].finish_step()
        # First the next step: an answer to these tokens comes too late for it.
        self._begin(number)
        self.on_tokens(number, tokens)
