"""The schedule of a simulated engine: its queue, its running batch and the order among them.

A step first continues the running requests, then admits waiting ones in order of arrival. Three
limits end the admission: the size of the batch, the token budget and the cache. Without chunked
prefill a step admits first, and computes either whole prompts or decodes.

Nearly all running requests decode, and `Decoding` advances them together. The others compute a
prompt, or compute again the tokens that they lost. The scheduler handles these one by one. Between
two steps at most one of them is incomplete, and it is the last of the batch.

If the cache is full, the scheduler preempts the running request that it admitted last. That
request loses its blocks, returns to the head of the queue and computes its tokens again.

A batch has at most `max_loras` adapters. A waiting request that would add one more stays in its
place, and later requests may overtake it. Nothing else is overtaken.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count, islice

from extproc.lab.engine.decoding import Decoding
from extproc.lab.engine.host_cache import HostCache
from extproc.lab.engine.kv_cache import BlockId, Holding, PrefixCache
from extproc.lab.engine.profile import Profile
from extproc.lab.engine.request import Sequence, SimRequest
from extproc.lab.engine.step import Step, StepTokens


class Scheduler:
    """Decides which tokens each step computes."""

    def __init__(self, profile: Profile, cache: PrefixCache) -> None:
        self._profile = profile
        self._cache = cache
        self.host = HostCache(profile.host_blocks)
        """Blocks in host memory."""
        self._admissions = count(1)
        self.waiting: OrderedDict[int, Sequence] = OrderedDict()
        """Sequences in the queue by request id, in its order."""
        self.running: dict[int, Sequence] = {}
        """Sequences of the batch by request id, in order of admission."""
        self.decoding = Decoding(profile.block_size)  # those of the batch that decode
        self.reset_counters()

    def reset_counters(self) -> None:
        """Set the counters to 0."""
        self.prefix_cache_queries = 0
        """Prompt tokens looked up in the cache, at the first admission of each request."""
        self.prefix_cache_hits = 0
        """Prompt tokens found in the cache."""
        self.host_cache_hits = 0
        """Prompt tokens found in host memory after those."""
        self.preemptions = 0
        """Preemptions of running requests."""
        self.prompt_tokens = 0
        """Prompt tokens, cached or not, of requests that have their first token."""
        self.computed_tokens = 0
        """Those of `prompt_tokens` that were not in the cache."""

    def submit(self, request: SimRequest) -> None:
        """Append a request to the queue."""
        self.waiting[request.request_id] = Sequence(request)

    def abort(self, request_id: int) -> bool:
        """Remove a request; return True if it was in the queue or in the batch."""
        waiting = self.waiting.pop(request_id, None)
        running = self.running.pop(request_id, None)
        if running is not None:
            self._release(running)
        return waiting is not None or running is not None

    def plan(self) -> Step:
        """Plan the next step: allocate its blocks, and admit and preempt requests."""
        step = Step(self._profile.max_num_batched_tokens)
        if not self._profile.chunked_prefill:
            self._plan_without_chunks(step)
            return step
        preemptions = self.preemptions
        self._continue_running(step)
        # A request that was just preempted is first in the queue, and would be preempted again.
        if self.waiting and self.preemptions == preemptions:
            self._admit_waiting(step)
        return step

    def _plan_without_chunks(self, step: Step) -> None:
        self._include_adapters(step)
        self._admit_waiting(step)
        step.decodes = not step.parts
        if step.decodes:
            self._continue_running(step)

    def complete(self, step: Step) -> StepTokens:
        """End a planned step and return its tokens."""
        tokens = StepTokens(self.decoding.request_ids if step.decodes else [], {}, [])
        for sequence in self.decoding.advance() if step.decodes else ():
            self.decoding.remove(sequence)
            self._finish(sequence, tokens)
        for sequence, computed in step.parts:
            if sequence.holding is None:
                continue  # aborted during the step
            sequence.computed += computed
            if sequence.computed == sequence.known:
                self._generate(sequence, tokens)
        return tokens

    def _continue_running(self, step: Step) -> None:
        """Plan one token of each decoding sequence, and the next tokens of an incomplete prompt."""
        for sequence in self.decoding.at_a_boundary():
            if sequence.holding is not None:  # not preempted for an earlier one of this loop
                self._continue_decoding(sequence)
        step.budget -= len(self.decoding)
        self._limit_prompts(step, bool(self.decoding))
        self._include_adapters(step)
        if len(self.running) > len(self.decoding):
            self._continue_prompt(next(reversed(self.running.values())), step)

    def _limit_prompts(self, step: Step, decodes: bool) -> None:
        """Limit the prompt tokens of a step that also decodes."""
        most = self._profile.max_prompt_tokens_with_decoding
        if most and decodes:
            step.budget = min(step.budget, most)

    def _include_adapters(self, step: Step) -> None:
        """Add the adapters of the decoding requests to the step."""
        if self._profile.max_loras:
            adapters = (sequence.request.adapter for sequence in self.decoding)
            step.adapters.update(dict.fromkeys(filter(None, adapters)))

    def _continue_decoding(self, sequence: Sequence) -> None:
        """Allocate a block if the next token begins one; name the block that it fills."""
        size = self._profile.block_size
        known = self.decoding.known(sequence)
        if known % size == 1 % size and not self._grow(sequence, 1):
            return
        if known % size == 0 and sequence.holding is not None:
            self._name(sequence.holding, sequence.request.blocks[known // size - 1])

    def _continue_prompt(self, sequence: Sequence, step: Step) -> None:
        """Plan as many tokens of a sequence as the budget allows."""
        tokens = min(sequence.known - sequence.computed, step.budget)
        if not tokens:
            return
        missing = -(-(sequence.computed + tokens) // self._profile.block_size) - sequence.held
        if missing > 0 and not self._grow(sequence, missing):
            return
        sequence.held += max(missing, 0)
        self._fill(sequence, tokens)
        step.add(sequence, tokens)

    def _grow(self, sequence: Sequence, blocks: int) -> bool:
        """Allocate blocks, preempting others; False if the sequence itself was preempted."""
        assert sequence.holding is not None
        while not self._cache.grow(sequence.holding, blocks):
            _, latest = self.running.popitem()
            self._preempt(latest)
            if latest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        self.preemptions += 1
        self.waiting[sequence.request.request_id] = sequence
        self.waiting.move_to_end(sequence.request.request_id, last=False)

    def _admit_waiting(self, step: Step) -> None:
        admitted: list[Sequence] = []
        room = self._profile.max_num_seqs - len(self.running)
        for sequence in self.waiting.values():
            if step.budget <= 0 or len(admitted) == room:
                break
            if self._exceeds_adapters(sequence.request.adapter, step):
                continue
            if not self._admit(sequence, step):
                break  # no request overtakes one that waits for cache blocks
            admitted.append(sequence)
        for sequence in admitted:
            request_id = sequence.request.request_id
            self.running[request_id] = self.waiting.pop(request_id)

    def _exceeds_adapters(self, adapter: str, step: Step) -> bool:
        """Return True if the batch has no room for this adapter; later requests need not wait."""
        if not adapter or adapter in step.adapters:
            return False
        return len(step.adapters) == self._profile.max_loras

    def _admit(self, sequence: Sequence, step: Step) -> bool:
        """Allocate blocks for a waiting sequence and plan its tokens; False without room."""
        size = self._profile.block_size
        ids = sequence.request.blocks
        # The last token is always computed, because the next token follows from it.
        whole = (sequence.known - 1) // size
        hits = self._cache.match(islice(ids, whole))
        loaded = self.host.match(islice(ids, hits, whole)) * size
        cached = hits * size + loaded
        tokens = sequence.known - cached
        if self._profile.chunked_prefill:
            tokens = min(tokens, step.budget)
        elif tokens > step.budget and step.parts:
            return False  # the next step computes it whole
        fresh = -(-(cached + tokens) // size) - hits
        holding = self._cache.acquire(ids, hits, fresh)
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
            self.prefix_cache_hits += cached - loaded
            self.host_cache_hits += loaded
        self.host.touch(islice(ids, whole))
        step.loaded += loaded
        self._fill(sequence, tokens)
        step.add(sequence, tokens)
        step.admitted += 1
        return True

    def _fill(self, sequence: Sequence, tokens: int) -> None:
        """Name the blocks that these tokens will fill, when the step is planned, as in vLLM.

        A request that is admitted later into the same step shares them.
        """
        full = (sequence.computed + tokens) // self._profile.block_size
        if full > sequence.filled and sequence.holding is not None:
            for block in islice(sequence.request.blocks, sequence.filled, full):
                self._name(sequence.holding, block)
            sequence.filled = full

    def _name(self, holding: Holding, block: BlockId) -> None:
        self._cache.name(holding, block)
        self.host.store(block)

    def _generate(self, sequence: Sequence, tokens: StepTokens) -> None:
        """Add a token to a sequence whose known tokens are all computed."""
        request = sequence.request
        sequence.generated += 1
        tokens.request_ids.append(request.request_id)
        if sequence.generated == 1:
            tokens.first[request.request_id] = sequence.cached_tokens or 0
            self.prompt_tokens += request.prompt_tokens
            self.computed_tokens += request.prompt_tokens - (sequence.cached_tokens or 0)
        if sequence.generated == request.output_tokens:
            self._finish(sequence, tokens)
        else:
            self._start_decoding(sequence)

    def _start_decoding(self, sequence: Sequence) -> None:
        self.decoding.add(sequence)

    def _finish(self, sequence: Sequence, tokens: StepTokens) -> None:
        request_id = sequence.request.request_id
        tokens.finished.append(request_id)
        del self.running[request_id]
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence in self.decoding:
            self.decoding.remove(sequence)
        assert sequence.holding is not None
        self._cache.release(sequence.holding)
        sequence.holding = None
