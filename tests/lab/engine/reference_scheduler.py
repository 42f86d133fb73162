"""A slow reference for the scheduler: it examines every running request in every step.

`Scheduler` advances decoding sequences together, through `Decoding`. This reference never uses
`Decoding`: it continues a decoding sequence like one whose prompt is incomplete. Admission,
preemption and the cache are the scheduler's own code.
"""

from __future__ import annotations

from extproc.lab.engine.kv_cache import PrefixCache
from extproc.lab.engine.profile import Profile
from extproc.lab.engine.request import Sequence
from extproc.lab.engine.scheduler import Scheduler
from extproc.lab.engine.step import Step


class ReferenceScheduler(Scheduler):
    """A scheduler that handles all running sequences one by one."""

    def __init__(self, profile: Profile, cache: PrefixCache) -> None:
        super().__init__(profile, cache)
        self._decoders: set[Sequence] = set()

    def _continue_running(self, step: Step) -> None:
        for sequence in list(self.running.values()):
            if sequence.holding is None or not step.budget:
                break  # preempted for an earlier one, and so are all later ones
            parts = len(step.parts)
            if sequence not in self._decoders:
                self._limit_prompts(step, bool(self._decoders))
            self._continue_prompt(sequence, step)
            if sequence in self._decoders and len(step.parts) > parts:
                step.prefill -= 1  # a generated token is no part of a prompt
        self._limit_prompts(step, bool(self._decoders))

    def _include_adapters(self, step: Step) -> None:
        for sequence in self.running.values():
            if sequence.request.adapter:
                step.adapters[sequence.request.adapter] = None

    def _start_decoding(self, sequence: Sequence) -> None:
        self._decoders.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._decoders.discard(sequence)
        super()._release(sequence)
