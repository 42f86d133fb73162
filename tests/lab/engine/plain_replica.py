"""The engine's model in its plain form: every step looks at every request.

What `extproc.lab.engine.replica` does by phases must come out as it does here.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from extproc.lab.engine.kv_cache import Holding, PrefixCache
from extproc.lab.engine.lora_slots import LoraSlots
from extproc.lab.engine.profile import Profile
from extproc.lab.engine.request import SimRequest


class TokenEvent(NamedTuple):
    """One token has been generated."""

    request_id: int
    first: bool
    finished: bool
    cached_tokens: int
    """Prompt tokens found in the cache when the request was admitted first."""


class Progress:
    """A request's progress. Waiting: no holding. Running: a holding."""

    __slots__ = (
        "cached_tokens",
        "computed",
        "filled",
        "generated",
        "held",
        "holding",
        "prefilling",
        "request",
    )

    def __init__(self, request: SimRequest) -> None:
        self.request = request
        self.generated = 0
        self.cached_tokens: int | None = None  # None: never admitted yet
        self.prefilling = True
        self.holding: Holding | None = None
        self.held = 0  # blocks
        self.filled = 0  # full blocks, of those held
        self.computed = 0  # tokens whose keys and values are in the cache

    @property
    def known(self) -> int:
        """Tokens of the prompt and those generated."""
        return self.request.prompt_tokens + self.generated


class Step:
    """What one step computes."""

    __slots__ = ("adapters", "admitted", "budget", "context", "parts", "prefill")

    def __init__(self, budget: int) -> None:
        self.parts: list[tuple[Progress, int]] = []
        self.adapters: dict[str, None] = {}  # in the order of the batch
        self.budget = budget
        self.context = 0
        self.prefill = 0
        self.admitted = 0

    def add(self, sequence: Progress, tokens: int) -> None:
        self.parts.append((sequence, tokens))
        self.budget -= tokens
        self.context += sequence.computed + tokens
        if sequence.prefilling:
            self.prefill += tokens
        if sequence.request.adapter:
            self.adapters[sequence.request.adapter] = None


class PlainReplica:
    """The same engine, one request after the other."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cache = PrefixCache(profile.kv_blocks)
        self.loras = LoraSlots(profile)
        self._running: dict[int, Progress] = {}  # in order of admission
        self._waiting: OrderedDict[int, Progress] = OrderedDict()
        self._step: Step | None = None
        self._loading: float | None = None  # seconds; None: no load was asked for
        self._reset_counters()

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones among them."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the cache held by running requests, 0 to 1."""
        return self.cache.usage

    def submit(self, request: SimRequest) -> None:
        """Queues a request. ValueError where it can never be served, or its id is in use."""
        self._waiting[request.request_id] = Progress(request)

    def abort(self, request_id: int) -> None:
        """Drops a request wherever it is; one that is unknown or over changes nothing."""
        self._waiting.pop(request_id, None)
        sequence = self._running.pop(request_id, None)
        if sequence is not None:
            self._release(sequence)

    def begin_step(self) -> float | None:
        """Plans the next step and says its seconds; None where there is nothing to do.

        A step without requests only loads the adapters that were asked for.
        """
        if self._step is not None:
            raise RuntimeError("finish_step() comes before the next begin_step()")
        step = Step(self.profile.max_num_batched_tokens)
        preempted = self._continue_running(step)
        if not preempted:
            # Who has just lost its blocks comes first, and would lose them again.
            self._admit_waiting(step)
        loading, self._loading = self._loading, None
        if not step.parts and loading is None:
            return None
        self._step = step
        return (loading or 0.0) + self.loras.use(step.adapters) + self._seconds(step)

    def finish_step(self) -> list[TokenEvent]:
        """Ends the step that begin_step() planned: at most one token for each request in it."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("begin_step() comes before finish_step()")
        events: list[TokenEvent] = []
        for sequence, tokens in step.parts:
            if sequence.holding is None:
                continue  # aborted while the step ran
            sequence.computed += tokens
            if sequence.computed == sequence.known:
                events.append(self._generate(sequence))
        return events

    def _reset_counters(self) -> None:
        self.prefix_cache_queries = 0
        """Prompt tokens looked up in the cache; a preempted request is not looked up again."""
        self.prefix_cache_hits = 0
        """Prompt tokens found in the cache."""
        self.preemptions = 0
        """Times that a running request lost its blocks."""
        self.prompt_tokens_total = 0
        """Prompt tokens, cached or not, of requests that have their first token."""
        self.generation_tokens_total = 0
        """Tokens generated."""

    def _seconds(self, step: Step) -> float:
        if not step.parts:
            return 0.0
        profile = self.profile
        return (
            profile.step_base_seconds
            + profile.seconds_per_context_token * step.context
            + profile.admission_seconds * step.admitted
            + step.prefill / profile.prefill_tokens_per_second
        )

    def _continue_running(self, step: Step) -> bool:
        """One token, or the next chunk of the prompt, for each; whether any was preempted."""
        preemptions = self.preemptions
        for sequence in list(self._running.values()):
            if sequence.holding is None or not step.budget:
                break  # preempted for one before it, and so are all behind it
            tokens = min(sequence.known - sequence.computed, step.budget)
            if self._make_room(sequence, tokens):
                self._fill(sequence, tokens)
                step.add(sequence, tokens)
        return self.preemptions > preemptions

    def _make_room(self, sequence: Progress, tokens: int) -> bool:
        """Blocks for so many tokens more; False where the request had to go itself."""
        holding = sequence.holding
        assert holding is not None
        missing = -(-(sequence.computed + tokens) // self.profile.block_size) - sequence.held
        if missing <= 0:
            return True
        while not self.cache.grow(holding, missing):
            _, latest = self._running.popitem()
            self._preempt(latest)
            if latest is sequence:
                return False
        sequence.held += missing
        return True

    def _preempt(self, sequence: Progress) -> None:
        self._release(sequence)
        self.preemptions += 1
        request_id = sequence.request.request_id
        self._waiting[request_id] = sequence
        self._waiting.move_to_end(request_id, last=False)

    def _admit_waiting(self, step: Step) -> None:
        admitted: list[Progress] = []
        room = self.profile.max_num_seqs - len(self._running)
        for sequence in self._waiting.values():
            if not step.budget or len(admitted) == room:
                break
            if self._is_one_adapter_too_many(sequence.request.adapter, step):
                continue  # keeps its place; others need not wait for a slot
            if not self._admit(sequence, step):
                break  # first come first served: nobody overtakes
            admitted.append(sequence)
        for sequence in admitted:
            request_id = sequence.request.request_id
            self._running[request_id] = self._waiting.pop(request_id)

    def _is_one_adapter_too_many(self, adapter: str, step: Step) -> bool:
        """Whether it would be, in this batch; what is in slots and unused does not count."""
        if not adapter or adapter in step.adapters:
            return False
        return len(step.adapters) == self.profile.max_loras

    def _admit(self, sequence: Progress, step: Step) -> bool:
        size = self.profile.block_size
        ids = sequence.request.blocks
        # The last token is computed in any case, because the next one comes out of it.
        hits = self.cache.match(islice(ids, (sequence.known - 1) // size))
        cached = hits * size
        tokens = min(sequence.known - cached, step.budget)
        fresh = -(-(cached + tokens) // size) - hits
        holding = self.cache.acquire(ids, hits, fresh)
        if holding is None:
            return False
        sequence.holding = holding
        sequence.held = hits + fresh
        sequence.filled = hits
        sequence.computed = cached
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached
            self.prefix_cache_queries += sequence.request.prompt_tokens
            self.prefix_cache_hits += cached
        self._fill(sequence, tokens)
        step.add(sequence, tokens)
        step.admitted += 1
        return True

    def _fill(self, sequence: Progress, tokens: int) -> None:
        """Names the blocks that these tokens will fill.

        Already when the step is planned, as in vLLM: a request admitted after this one
        into the same step shares them.
        """
        full = (sequence.computed + tokens) // self.profile.block_size
        if full > sequence.filled and sequence.holding is not None:
            for block in islice(sequence.request.blocks, sequence.filled, full):
                self.cache.name(sequence.holding, block)
            sequence.filled = full

    def _generate(self, sequence: Progress) -> TokenEvent:
        request = sequence.request
        sequence.prefilling = False
        sequence.generated += 1
        first = sequence.generated == 1
        finished = sequence.generated == request.output_tokens
        self.generation_tokens_total += 1
        if first:
            self.prompt_tokens_total += request.prompt_tokens
        if finished:
            del self._running[request.request_id]
            self._release(sequence)
        return TokenEvent(request.request_id, first, finished, sequence.cached_tokens or 0)

    def _release(self, sequence: Progress) -> None:
        assert sequence.holding is not None
        self.cache.release(sequence.holding)
        sequence.holding = None
        sequence.prefilling = True
