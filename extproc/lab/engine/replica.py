"""One vLLM engine as a model without a clock: what each step computes, and how long it takes.

Theory of operation. An engine works in steps. Each step continues every running request,
then admits waiting ones first come first served, as long as batch, token budget and
cache have room; at its end every request whose known tokens are all computed has one token more.

    begin_step()   plans a step and says how many seconds it takes
    finish_step()  what came out of it

A driver lets that time pass in between: an event loop by sleeping, a simulation by moving its
clock. Requests can be submitted and aborted at any moment, also between the two.

Nearly all running requests decode, and are advanced together (`extproc.lab.engine.decoding`). What
computes a prompt, or computes again what it lost, is looked at one by one; one of them at
most is half done between two steps, and it is the last of the batch.

When the cache is full, the one admitted last among the running requests is preempted: it loses its
blocks, returns to the front of the queue, and computes its tokens again when it is its turn.

A batch has `max_loras` adapters at most. A waiting request that would bring one more keeps its
place in the queue, and those behind it may overtake it; nothing else is ever overtaken. Bringing
an adapter into its slot takes time in the step that needs it: see `extproc.lab.engine.lora_slots`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import chain, count, islice

from extproc.lab.engine.decoding import Decoding
from extproc.lab.engine.kv_cache import PrefixCache
from extproc.lab.engine.lora_slots import LoraSlots
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, Profile
from extproc.lab.engine.request import Progress, SimRequest, StepTokens

__all__ = ["L4_LLAMA_3_1_8B_FP8", "Profile", "Replica", "SimRequest", "StepTokens"]


class _Step:
    """What one step computes beside the tokens of those that decode."""

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
        self.prefill += tokens
        if sequence.request.adapter:
            self.adapters[sequence.request.adapter] = None


class Replica:
    """One engine: queue, running batch, cache."""

    def __init__(self, profile: Profile = L4_LLAMA_3_1_8B_FP8) -> None:
        self.profile = profile
        self.cache = PrefixCache(profile.kv_blocks)
        self.loras = LoraSlots(profile)
        self._running: dict[int, Progress] = {}  # in order of admission
        self._decoding = Decoding(profile.block_size)  # of those
        self._waiting: OrderedDict[int, Progress] = OrderedDict()
        self._admissions = count(1)
        self._step: _Step | None = None
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
    def running_adapters(self) -> Counter[str]:
        """Requests in the batch by adapter, without those of the base model."""
        return _by_adapter(self._running.values())

    @property
    def waiting_adapters(self) -> Counter[str]:
        """Requests in the queue by adapter, without those of the base model."""
        return _by_adapter(self._waiting.values())

    @property
    def answering_adapters(self) -> Counter[str]:
        """Requests by adapter that have a token, whether in the batch or preempted."""
        sequences = chain(self._running.values(), self._waiting.values())
        return _by_adapter(sequence for sequence in sequences if sequence.generated)

    @property
    def kv_usage(self) -> float:
        """Share of the cache held by running requests, 0 to 1."""
        return self.cache.usage

    def submit(self, request: SimRequest) -> None:
        """Queues a request. ValueError where it can never be served, or its id is in use."""
        self._check(request)
        self._waiting[request.request_id] = Progress(request)

    def abort(self, request_id: int) -> None:
        """Drops a request wherever it is; one that is unknown or over changes nothing."""
        waiting = self._waiting.pop(request_id, None)
        running = self._running.pop(request_id, None)
        if running is not None:
            self._release(running)
        self.finished_total += waiting is not None or running is not None

    def load_adapter(self, adapter: str) -> None:
        """Reads an adapter from disk before the next step, which takes so much longer.

        Loaded before or not: who asks for it says that what is on the disk is new.
        """
        self._loading = (self._loading or 0.0) + self.loras.load(adapter)

    def begin_step(self) -> float | None:
        """Plans the next step and says its seconds; None where there is nothing to do.

        A step without requests only loads the adapters that were asked for.
        """
        if self._step is not None:
            raise RuntimeError("finish_step() comes before the next begin_step()")
        step = _Step(self.profile.max_num_batched_tokens)
        preempted = self._continue_running(step)
        if self._waiting and not preempted:
            # Who has just lost its blocks comes first, and would lose them again.
            self._admit_waiting(step)
        loading, self._loading = self._loading, None
        if not step.parts and not self._decoding and loading is None:
            return None
        self._step = step
        seconds = self._seconds(step)
        if step.adapters:
            seconds += self.loras.use(step.adapters)
        return seconds + (loading or 0.0)

    def finish_step(self) -> StepTokens:
        """Ends the step that begin_step() planned: at most one token for each request in it."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("begin_step() comes before finish_step()")
        tokens = StepTokens(self._decoding.request_ids, {}, [])
        for sequence in self._decoding.advance():
            self._decoding.remove(sequence)
            self._finish(sequence, tokens)
        for sequence, computed in step.parts:
            if sequence.holding is None:
                continue  # aborted while the step ran
            sequence.computed += computed
            if sequence.computed == sequence.known:
                self._generate(sequence, tokens)
        self.generation_tokens_total += len(tokens.request_ids)
        self.first_tokens_total += len(tokens.first)
        self.finished_total += len(tokens.finished)
        return tokens

    def reset(self) -> None:
        """Forgets idle blocks and sets all counters to 0; requests in the engine go on."""
        self.cache.clear()
        self._reset_counters()

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
        self.first_tokens_total = 0
        """Requests that have their first token."""
        self.finished_total = 0
        """Requests that are over, aborted ones among them."""

    def _check(self, request: SimRequest) -> None:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request has one token of prompt and one of output at least")
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
        if request.adapter and not self.profile.max_loras:
            raise ValueError(f"adapter {request.adapter} is asked for, but LoRA is off")
        if request.request_id in self._running or request.request_id in self._waiting:
            raise ValueError(f"request {request.request_id} is in the engine already")

    def _seconds(self, step: _Step) -> float:
        if not step.parts and not self._decoding:
            return 0.0
        profile = self.profile
        return (
            profile.step_base_seconds
            + profile.seconds_per_context_token * (self._decoding.context + step.context)
            + profile.admission_seconds * step.admitted
            + step.prefill / profile.prefill_tokens_per_second
        )

    def _continue_running(self, step: _Step) -> bool:
        """One token, or the next chunk of the prompt, for each; whether any was preempted."""
        preemptions = self.preemptions
        for sequence in self._decoding.at_a_boundary():
            if sequence.holding is not None:  # else preempted for one before it
                self._decode_block(sequence)
        step.budget -= len(self._decoding)
        if self.profile.max_loras:
            adapters = (sequence.request.adapter for sequence in self._decoding)
            step.adapters.update(dict.fromkeys(filter(None, adapters)))
        if len(self._running) > len(self._decoding):
            self._continue_last(step)
        return self.preemptions > preemptions

    def _decode_block(self, sequence: Progress) -> None:
        """A block for the next token where it is the first of one; it is named when it is full."""
        size = self.profile.block_size
        known = self._decoding.known(sequence)
        if known % size == 1 % size and not self._grow(sequence, 1):
            return
        if known % size == 0 and sequence.holding is not None:
            self.cache.name(sequence.holding, sequence.request.blocks[known // size - 1])

    def _continue_last(self, step: _Step) -> None:
        """The next chunk of the one that is half done."""
        sequence = next(reversed(self._running.values()))
        tokens = min(sequence.known - sequence.computed, step.budget)
        if not tokens:
            return
        missing = -(-(sequence.computed + tokens) // self.profile.block_size) - sequence.held
        if missing > 0 and not self._grow(sequence, missing):
            return
        sequence.held += max(missing, 0)
        self._fill(sequence, tokens)
        step.add(sequence, tokens)

    def _grow(self, sequence: Progress, blocks: int) -> bool:
        """So many blocks more; False where the request had to go itself to make room."""
        assert sequence.holding is not None
        while not self.cache.grow(sequence.holding, blocks):
            _, latest = self._running.popitem()
            self._preempt(latest)
            if latest is sequence:
                return False
        return True

    def _preempt(self, sequence: Progress) -> None:
        self._release(sequence)
        self.preemptions += 1
        request_id = sequence.request.request_id
        self._waiting[request_id] = sequence
        self._waiting.move_to_end(request_id, last=False)

    def _admit_waiting(self, step: _Step) -> None:
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

    def _is_one_adapter_too_many(self, adapter: str, step: _Step) -> bool:
        """Whether it would be, in this batch; what is in slots and unused does not count."""
        if not adapter or adapter in step.adapters:
            return False
        return len(step.adapters) == self.profile.max_loras

    def _admit(self, sequence: Progress, step: _Step) -> bool:
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
        sequence.order = next(self._admissions)
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

    def _generate(self, sequence: Progress, tokens: StepTokens) -> None:
        """All that was known is computed, and one token more comes out of it."""
        request = sequence.request
        sequence.generated += 1
        tokens.request_ids.append(request.request_id)
        if sequence.generated == 1:
            tokens.first[request.request_id] = sequence.cached_tokens or 0
            self.prompt_tokens_total += request.prompt_tokens
        if sequence.generated == request.output_tokens:
            self._finish(sequence, tokens)
        else:
            self._decoding.add(sequence)

    def _finish(self, sequence: Progress, tokens: StepTokens) -> None:
        request_id = sequence.request.request_id
        tokens.finished.append(request_id)
        del self._running[request_id]
        self._release(sequence)

    def _release(self, sequence: Progress) -> None:
        if sequence in self._decoding:
            self._decoding.remove(sequence)
        assert sequence.holding is not None
        self.cache.release(sequence.holding)
        sequence.holding = None


def _by_adapter(sequences: Iterable[Progress]) -> Counter[str]:
    adapters = (sequence.request.adapter for sequence in sequences)
    return Counter(adapter for adapter in adapters if adapter)
