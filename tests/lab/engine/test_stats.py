from __future__ import annotations

from dataclasses import replace

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica, SimRequest
from extproc.lab.engine.stats import SchedulerStats

ONE_AT_A_TIME = replace(L4_LLAMA_3_1_8B_FP8, max_num_seqs=1)


def submit(replica: Replica, number: int) -> None:
    replica.submit(SimRequest(number, 16, 2, [number]))


def step(replica: Replica) -> None:
    replica.begin_step()
    replica.finish_step()


def requests(replica: Replica) -> tuple[int, int]:
    return replica.stats.running, replica.stats.waiting


class TestStats:
    def test_are_empty_before_the_first_step_ends(self) -> None:
        replica = Replica(ONE_AT_A_TIME)
        submit(replica, 1)
        replica.begin_step()
        assert replica.stats == SchedulerStats()

    def test_have_the_batch_and_the_queue_at_the_end_of_a_step(self) -> None:
        replica = Replica(ONE_AT_A_TIME)
        submit(replica, 1)
        submit(replica, 2)
        step(replica)
        assert requests(replica) == (1, 1)

    def test_omit_a_request_that_arrives_during_the_step(self) -> None:
        replica = Replica(ONE_AT_A_TIME)
        submit(replica, 1)
        replica.begin_step()
        submit(replica, 2)
        replica.finish_step()
        assert requests(replica) == (1, 0)

    def test_omit_requests_that_are_aborted_between_steps(self) -> None:
        replica = Replica(ONE_AT_A_TIME)
        submit(replica, 1)
        submit(replica, 2)
        step(replica)
        replica.abort(1)
        replica.abort(2)
        assert requests(replica) == (0, 0)
