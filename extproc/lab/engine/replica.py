"""One vLLM engine as a model without a clock: the tokens of each step, and its duration.

    begin_step()   plans a step and returns its duration in seconds
    finish_step()  ends the step and returns its tokens

A driver lets that time pass between the two calls: an event loop sleeps, and a simulation moves its
clock. Requests can be submitted and aborted at any time, also between the two calls.

`extproc.lab.engine.scheduler` decides which requests a step continues and admits. The duration of a
step follows from its profile (`extproc.lab.engine.profile`). To load an adapter into a slot takes
additional time in the step that needs it (`extproc.lab.engine.lora_slots`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from extproc.lab.engine.kv_cache import BlockId, PrefixCache
from extproc.lab.engine.lora_slots import LoraSlots
from extproc.lab.engine.prefill_times import PrefillTimes
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, Profile
from extproc.lab.engine.request import Sequence, SimRequest
from extproc.lab.engine.scheduler import Scheduler
from extproc.lab.engine.stats import SchedulerStats
from extproc.lab.engine.step import Step, StepTokens

__all__ = ["L4_LLAMA_3_1_8B_FP8", "Profile", "Replica", "SimRequest", "StepTokens"]


class Replica:
    """One engine: scheduler, cache and LoRA slots."""

    def __init__(
        self,
        profile: Profile = L4_LLAMA_3_1_8B_FP8,
        make_scheduler: type[Scheduler] = Scheduler,
    ) -> None:
        self.profile = profile
        self.cache = PrefixCache(profile.kv_blocks)
        self.loras = LoraSlots(profile)
        self._scheduler = make_scheduler(profile, self.cache)
        self._step: Step | None = None
        self._loading: float | None = None
        """Seconds to load the requested adapters; None if there are none."""
        self._left = list[str]()
        """Adapters of the requests that the present step leaves in the queue, in its order."""
        self.stats = SchedulerStats()
        """The state of the scheduler in the metrics: that at the end of the last step."""
        self._reset_counters()

    @property
    def scheduler(self) -> Scheduler:
        """The true state of queue and batch, for the laboratory's oracle."""
        return self._scheduler

    @property
    def planned(self) -> Step | None:
        """The step that is being computed; None between steps."""
        return self._step

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in the queue, including preempted ones."""
        return len(self._scheduler.waiting)

    @property
    def running_adapters(self) -> Counter[str]:
        """Requests in the batch by adapter, without those of the base model."""
        return _by_adapter(self._scheduler.running.values())

    @property
    def waiting_adapters(self) -> Counter[str]:
        """Requests in the queue by adapter, without those of the base model."""
        return _by_adapter(self._scheduler.waiting.values())

    @property
    def answering_adapters(self) -> Counter[str]:
        """Requests that have a token by adapter, whether in the batch or preempted."""
        sequences = chain(self._scheduler.running.values(), self._scheduler.waiting.values())
        return _by_adapter(sequence for sequence in sequences if sequence.generated)

    @property
    def kv_usage(self) -> float:
        """Share of the cache that running requests hold, 0 to 1."""
        return self.cache.usage

    @property
    def prefix_cache_queries(self) -> int:
        """Prompt tokens looked up in the cache; a preempted request is not looked up again."""
        return self._scheduler.prefix_cache_queries

    @property
    def prefix_cache_hits(self) -> int:
        """Prompt tokens found in the cache."""
        return self._scheduler.prefix_cache_hits

    @property
    def host_cache_hits(self) -> int:
        """Prompt tokens found in host memory; `prefix_cache_hits` does not include them."""
        return self._scheduler.host_cache_hits

    def keeps(self, block: BlockId) -> bool:
        """Return True if the GPU or host memory has a block."""
        return block in self.cache or block in self._scheduler.host

    @property
    def preemptions(self) -> int:
        """Preemptions of running requests."""
        return self._scheduler.preemptions

    @property
    def prompt_tokens_total(self) -> int:
        """Prompt tokens, cached or not, of requests that have their first token."""
        return self._scheduler.prompt_tokens

    @property
    def computed_tokens_total(self) -> int:
        """Those of `prompt_tokens_total` that were not in the cache."""
        return self._scheduler.computed_tokens

    def submit(self, request: SimRequest) -> None:
        """Queue a request.

        Raises ValueError if the engine can never serve it, or if its id is in use.
        """
        self._check(request)
        self._scheduler.submit(request)

    def abort(self, request_id: int) -> None:
        """Remove a request from the engine; ignore one that is unknown or finished."""
        self.prefills.aborted(request_id)
        self.finished_total += self._scheduler.abort(request_id)
        if self._step is None:
            self._left = []
            self._update_stats()

    def load_adapter(self, adapter: str) -> None:
        """Read an adapter from disk before the next step, which takes longer by that time.

        An adapter that is already loaded is read again: its files may have changed.
        """
        self._loading = (self._loading or 0.0) + self.loras.load(adapter)

    def begin_step(self) -> float | None:
        """Plan the next step and return its seconds; None if there is nothing to do.

        A step without requests only loads the requested adapters.
        """
        if self._step is not None:
            raise RuntimeError("begin_step() was called again: call finish_step() first")
        step = self._scheduler.plan()
        decoding = self._scheduler.decoding
        loading, self._loading = self._loading, None
        if not step.parts and not decoding and loading is None:
            return None
        self._step = step
        self._left = [one.request.adapter for one in self._scheduler.waiting.values()]
        self.prefills.began(step)
        seconds = step.seconds(self.profile, decoding)
        if step.adapters:
            seconds += self.loras.use(step.adapters)
        return seconds + (loading or 0.0)

    def finish_step(self) -> StepTokens:
        """End the planned step and return its tokens, at most one for each request."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("finish_step() was called without a step: call begin_step() first")
        tokens = self._scheduler.complete(step)
        self.generation_tokens_total += len(tokens.request_ids)
        self.first_tokens_total += len(tokens.first)
        self.steps_total += bool(tokens.request_ids)
        self.finished_total += len(tokens.finished)
        self._update_stats()
        return tokens

    def took(self, seconds: float, tokens: StepTokens) -> None:
        """Count the times of prompts and between tokens, after a step.

        It took `seconds`, in the driver's time.
        """
        self.prefills.took(seconds, tokens)
        further = len(tokens.request_ids) - len(tokens.first)
        self.inter_token_times_total += further
        self.inter_token_seconds_total += seconds * further

    def reset(self) -> None:
        """Drop idle blocks and set all counters to 0; requests in the engine continue."""
        self.cache.clear()
        self._scheduler.host.clear()
        self._scheduler.reset_counters()
        self._reset_counters()
        self._update_stats()

    def _update_stats(self) -> None:
        has_adapters = self.profile.max_loras > 0
        self.stats = SchedulerStats(
            self.running,
            min(len(self._left), self.waiting),
            self.kv_usage,
            frozenset(self.running_adapters if has_adapters else ()),
            frozenset(filter(None, self._left) if has_adapters else ()),
            self.prefix_cache_queries,
            self.prefix_cache_hits,
            self.host_cache_hits,
            self.preemptions,
        )

    def _reset_counters(self) -> None:
        self.generation_tokens_total = 0
        """Generated tokens."""
        self.first_tokens_total = 0
        """Requests that have their first token."""
        self.first_token_seconds_total = 0.0
        """Sum of their times to first token, added by the program that runs the steps."""
        self.steps_total = 0
        """Steps that produced tokens."""
        self.inter_token_seconds_total = 0.0
        """Sum of the times between a request's tokens, added by the program that runs the steps."""
        self.inter_token_times_total = 0
        """Number of these times."""
        self.finished_total = 0
        """Requests that finished or were aborted."""
        self.prefills = PrefillTimes()
        """The times of their prompts."""

    def _check(self, request: SimRequest) -> None:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        self._check_size(request)
        if request.adapter and not self.profile.max_loras:
            raise ValueError(f"the request names adapter {request.adapter}, but LoRA is off")
        request_id = request.request_id
        if request_id in self._scheduler.running or request_id in self._scheduler.waiting:
            raise ValueError(f"request {request_id} is already in the engine")

    def _check_size(self, request: SimRequest) -> None:
        tokens = request.prompt_tokens + request.output_tokens
        size = self.profile.block_size
        if len(request.blocks) != tokens // size:
            raise ValueError(
                f"{tokens} tokens fill {tokens // size} blocks of {size}, "
                f"but {len(request.blocks)} ids were given"
            )
        if -(-tokens // size) > self.cache.capacity:
            raise ValueError(
                f"prompt and output together have {tokens} tokens, "
                f"but the whole cache holds {self.cache.capacity * size}"
            )


def _by_adapter(sequences: Iterable[Sequence]) -> Counter[str]:
    adapters = (sequence.request.adapter for sequence in sequences)
    return Counter(adapter for adapter in adapters if adapter)
