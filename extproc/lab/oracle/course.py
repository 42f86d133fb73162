"""The near future of one engine: its queue and batch, played forward step by step.

All output lengths are known, so the course needs no clock and no guess. It follows the scheduler in
what determines the time of a first token: the order of the queue, the token budget of a step, the
size of the batch, the cache's free blocks and the time of a step. It leaves out preemptions and the
growth of decoding requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from extproc.lab.engine.replica import Replica
from extproc.lab.engine.request import Sequence


class Ahead(NamedTuple):
    """A request whose prompt is not computed yet."""

    tokens: int
    """Tokens that must be in the cache before it gets its next one."""

    uncached: int
    """Those of them that the engine has to compute."""

    output: int
    """Tokens that it still generates."""

    adapter: str = ""


class _Resident(NamedTuple):
    """A decoding request."""

    ends: int
    """The step that generates its last token."""

    context: int
    """Its tokens after that step."""

    blocks: int
    """Blocks that only this request holds."""

    adapter: str


class Course:
    """The steps of one engine from the end of the current one."""

    def __init__(self, replica: Replica, start: float) -> None:
        """`start` is the time at which the next step begins."""
        self._replica = replica
        self._profile = replica.profile
        self._decoding = replica.scheduler.decoding
        self.time = start
        self._step = 0
        self._number = len(self._decoding)
        self._context = self._decoding.context
        self._free = replica.cache.free
        self._unfinished: tuple[Ahead, int] | None = None
        self._known_ends = False
        self._ends: list[_Resident] = []
        self._adapters: Counter[str] = Counter()
        if replica.profile.max_loras:
            self._adapters.update(replica.running_adapters)
        step = replica.planned
        self._passed = 1 if step is not None and step.decodes else 0
        self._context += self._number * self._passed
        for sequence, tokens in step.parts if step is not None else ():
            self._continue(sequence, tokens)

    def first_token(self, queue: Iterable[Ahead]) -> float:
        """Return the time at which the last request of the queue gets its next token.

        Return infinity if it never fits.
        """
        pending = deque(queue)
        last = pending[-1]
        while True:
            parts = self._plan(pending)
            if not parts:
                if not self._wait():
                    return float("inf")
                continue
            if parts[-1][0] is last and not parts[-1][1]:
                return self.time
            if self._profile.chunked_prefill:
                self._advance(1)
            for one, left in parts:
                if left:
                    self._unfinished = (one, left)
                else:
                    self._reside(one)

    def _continue(self, sequence: Sequence, tokens: int) -> None:
        """Take over a prompt of which the current step computes these tokens."""
        left = sequence.known - sequence.computed - tokens
        output = sequence.request.output_tokens - sequence.generated
        one = Ahead(sequence.known, left + tokens, output, sequence.request.adapter)
        if left:
            self._unfinished = (one, left)
        else:
            self._reside(one)

    def _plan(self, pending: deque[Ahead]) -> list[tuple[Ahead, int]]:
        """Compute the prompts of one step; return them with the tokens that are left of each."""
        profile = self._profile
        budget = self._budget()
        parts: list[tuple[Ahead, int]] = []
        computed: list[int] = []
        if self._unfinished is not None and budget > 0:
            one, left = self._unfinished
            self._unfinished = None
            computed.append(min(left, budget))
            parts.append((one, left - computed[0]))
            budget -= computed[0]
        continued = len(parts)
        room = profile.max_num_seqs - self._number
        while pending and budget > 0 and len(parts) < room:
            one = pending[0]
            tokens = min(one.uncached, budget) if profile.chunked_prefill else one.uncached
            if (tokens > budget and parts) or not self._take(one):
                break
            pending.popleft()
            parts.append((one, one.uncached - tokens))
            computed.append(tokens)
            budget -= tokens
        if parts:
            self.time += self._seconds(parts, sum(computed), len(parts) - continued)
        return parts

    def _budget(self) -> int:
        """Return the most prompt tokens of the next step."""
        profile = self._profile
        if not profile.chunked_prefill:
            return profile.max_num_batched_tokens
        budget = profile.max_num_batched_tokens - self._number
        most = profile.max_prompt_tokens_with_decoding
        return min(budget, most) if most and self._number else budget

    def _seconds(self, parts: list[tuple[Ahead, int]], prefill: int, admitted: int) -> float:
        """Return the duration of a step with prompts."""
        profile = self._profile
        context = sum(one.tokens - left for one, left in parts)
        if profile.chunked_prefill:
            context += self._context
        return (
            profile.step_base_seconds
            + profile.seconds_per_context_token * context
            + profile.admission_seconds * admitted
            + prefill / profile.prefill_tokens_per_second
        )

    def _take(self, one: Ahead) -> bool:
        """Give a request its blocks and its adapter's slot; return False without room."""
        in_batch = sum(map(bool, self._adapters.values()))
        if one.adapter and not self._adapters[one.adapter] and in_batch >= self._profile.max_loras:
            return False
        blocks = -(-one.uncached // self._profile.block_size)
        if blocks > self._free:
            return False
        self._free -= blocks
        if one.adapter:
            self._adapters[one.adapter] += 1
        return True

    def _reside(self, one: Ahead) -> None:
        """Let a request decode, unless it already has its last token."""
        if one.output > 1:
            blocks = -(-one.uncached // self._profile.block_size)
            ends = self._step + one.output - 1
            heappush(self._ends, _Resident(ends, one.tokens + one.output, blocks, one.adapter))
            self._number += 1
            self._context += one.tokens + 1

    def _wait(self) -> bool:
        """Decode until a request ends; return False if none does."""
        self._learn_ends()
        if not self._ends:
            return False
        steps = max(0, self._ends[0].ends - self._step)
        profile, more = self._profile, self._number * (steps - 1) / 2
        self.time += steps * (
            profile.step_base_seconds + profile.seconds_per_context_token * (self._context + more)
        )
        self._advance(steps)
        return True

    def _advance(self, steps: int) -> None:
        """Give each decoding request this number of tokens."""
        self._learn_ends()
        self._step += steps
        self._context += self._number * steps
        while self._ends and self._ends[0].ends <= self._step:
            ended = heappop(self._ends)
            self._number -= 1
            self._context -= ended.context
            self._free += ended.blocks
            if ended.adapter:
                self._adapters[ended.adapter] -= 1

    def _learn_ends(self) -> None:
        """Look up the ends of the batch. Most courses are over before they need them."""
        if self._known_ends:
            return
        self._known_ends = True
        for sequence in self._decoding:
            request = sequence.request
            ends = self._decoding.remaining(sequence) - self._passed
            context = request.prompt_tokens + request.output_tokens
            self._ends.append(_Resident(ends, context, self._own(sequence), request.adapter))
        heapify(self._ends)

    def _own(self, sequence: Sequence) -> int:
        """Return the number of blocks that only this request holds: the tail of its prompt."""
        holding, cache = sequence.holding, self._replica.cache
        if holding is None:
            return 0
        named = holding.named
        shared = bisect_left(named, True, key=lambda block: cache.holders(block) < 2)
        return holding.anonymous + len(named) - shared
