"""Prompts and decoding in one step: without chunked prefill, and with priority of decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab.engine.replica import Replica
from tests.lab.engine.replicas import L4, request, step


class TestWithoutChunkedPrefill:
    WHOLE = replace(L4, chunked_prefill=False, max_num_batched_tokens=512)

    def test_a_step_computes_whole_prompts_or_decodes(self) -> None:
        replica = Replica(self.WHOLE)
        replica.submit(request(0, 32, 5))
        assert [event.request_id for event in step(replica)] == [0]
        replica.submit(request(1, 32, 5))
        assert [event.request_id for event in step(replica)] == [1]
        assert [event.request_id for event in step(replica)] == [0, 1]

    def test_a_prompt_beyond_the_budget_has_a_step_of_its_own(self) -> None:
        replica = Replica(self.WHOLE)
        replica.submit(request(0, 32, 5))
        replica.submit(request(1, 2_000, 5))
        replica.submit(request(2, 32, 5))
        firsts = [[event.request_id for event in step(replica)] for _ in range(3)]
        assert firsts == [[0], [1], [2]]

    def test_decoding_requests_cost_nothing_in_a_step_of_prompts(self) -> None:
        replica = Replica(self.WHOLE)
        replica.submit(request(0, 480, 5))
        step(replica)
        replica.submit(request(1, 43, 5))
        expected = 0.041 + 43 * 0.5e-6 + 0.010 + 43 / 4_300.0
        assert replica.begin_step() == pytest.approx(expected)


class TestPriorityOfDecoding:
    LIMITED = replace(L4, max_prompt_tokens_with_decoding=16)

    def test_a_prompt_is_computed_in_small_chunks_while_others_decode(self) -> None:
        replica = Replica(self.LIMITED)
        replica.submit(request(0, 32, 9))
        step(replica)
        replica.submit(request(1, 64, 9))
        firsts = [[event.request_id for event in step(replica)] for _ in range(4)]
        assert firsts == [[0], [0], [0], [0, 1]]

    def test_a_prompt_alone_is_not_limited(self) -> None:
        replica = Replica(self.LIMITED)
        replica.submit(request(0, 4_000, 9))
        assert [event.request_id for event in step(replica)] == [0]
