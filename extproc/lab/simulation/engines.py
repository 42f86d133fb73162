"""The engines of a simulated fleet. Each works step by step and reports its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from extproc.lab.engine.profile import Profile
from extproc.lab.engine.replica import Replica, SimRequest, StepTokens
from extproc.lab.simulation.timeline import Timeline

OnTokens = Callable[[int, StepTokens], None]
"""Called with the engine's number and the tokens of its step."""


class Engines:
    """The stand-in's engines, driven by a timeline."""

    def __init__(
        self,
        timeline: Timeline,
        profile: Profile,
        number: int,
        slow: Mapping[int, float] | None = None,
        others: Mapping[int, Profile] | None = None,
    ) -> None:
        """Create `number` engines.

        `slow` has factors on the time of some, by number, and `others` the profiles of some.
        """
        times, own = slow or {}, others or {}
        self.replicas = [
            Replica(slowed(own.get(one, profile), times.get(one, 1.0))) for one in range(number)
        ]
        self.on_tokens: OnTokens = lambda number, tokens: None
        self.before_step: Callable[[int], None] = lambda number: None
        """Called with the engine's number before it plans a step."""
        self.step_ends = [0.0] * number
        """Time at which the latest step of each engine ends."""
        self._timeline = timeline
        self._began = timeline.now
        self._kv_seconds = 0.0
        self._idle = [True] * number
        self._submitted: list[dict[int, float]] = [{} for _ in range(number)]
        self._preemptions_before = 0  # of engines that died

    @property
    def preemptions(self) -> int:
        """Preemptions of all engines, including those that died."""
        return self._preemptions_before + sum(one.preemptions for one in self.replicas)

    def submit(self, number: int, request: SimRequest) -> None:
        """Queue a request. Raises ValueError if the engine can never serve it."""
        replica = self.replicas[number]
        replica.submit(request)
        self._submitted[number][request.request_id] = self._timeline.now
        if self._idle[number]:
            self._idle[number] = False
            # Not now: other requests of this moment belong to the same step.
            self._timeline.at(self._timeline.now, partial(self._begin, number, replica))

    def is_idle(self, number: int) -> bool:
        """Return True if an engine has nothing to do."""
        return self._idle[number]

    def replace(self, number: int) -> None:
        """Replace a dead engine by a new one; its requests and cache are lost."""
        dead = self.replicas[number]
        self._preemptions_before += dead.preemptions
        self.replicas[number] = Replica(dead.profile)
        self._submitted[number] = {}
        self._idle[number] = True

    def kv_usage(self) -> float:
        """Return the share of the caches that requests held, averaged since the last call."""
        engine_seconds = (self._timeline.now - self._began) * len(self.replicas)
        held, self._kv_seconds, self._began = self._kv_seconds, 0.0, self._timeline.now
        return held / engine_seconds if engine_seconds else 0.0

    def warm_adapters(self, adapters: list[str]) -> None:
        """Load adapters, as far as they fit, before the start, as vLLM's `--lora-modules` does."""
        for replica in self.replicas:
            for adapter in adapters[: replica.profile.max_cpu_loras or replica.profile.max_loras]:
                replica.load_adapter(adapter)
            if replica.begin_step() is not None:
                replica.finish_step()

    def _begin(self, number: int, replica: Replica) -> None:
        if replica is not self.replicas[number]:
            return  # the engine is dead
        self.before_step(number)
        seconds = replica.begin_step()
        if seconds is None:
            self._idle[number] = True
        else:
            self._kv_seconds += replica.kv_usage * seconds
            self.step_ends[number] = self._timeline.now + seconds
            self._timeline.at(
                self.step_ends[number], partial(self._finish, number, replica, seconds)
            )

    def _finish(self, number: int, replica: Replica, seconds: float) -> None:
        if replica is not self.replicas[number]:
            return
        tokens = replica.finish_step()
        replica.took(seconds, tokens)
        for request_id in tokens.first:
            waited = self._timeline.now - self._submitted[number].pop(request_id)
            replica.first_token_seconds_total += waited
        # First the next step: a request caused by these tokens arrives too late for it.
        self._begin(number, replica)
        self.on_tokens(number, tokens)


def slowed(profile: Profile, times: float) -> Profile:
    """Return the profile of an engine whose steps all take `times` times as long."""
    if times == 1:
        return profile
    return replace(
        profile,
        step_base_seconds=times * profile.step_base_seconds,
        seconds_per_context_token=times * profile.seconds_per_context_token,
        admission_seconds=times * profile.admission_seconds,
        prefill_tokens_per_second=profile.prefill_tokens_per_second / times,
    )
