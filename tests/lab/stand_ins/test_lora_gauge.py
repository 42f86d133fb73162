"""The gauge of adapters in use: what its labels list, and which of its series counts."""

from __future__ import annotations

from dataclasses import replace

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica, SimRequest
from extproc.lab.stand_ins.lora_gauge import STALE_SERIES, LoraGauge, LoraLabels


def replica_with(max_loras: int, *adapters: str, tokens: int = 3) -> Replica:
    """A request of a few tokens for each adapter."""
    replica = Replica(replace(L4_LLAMA_3_1_8B_FP8, max_loras=max_loras))
    for number, adapter in enumerate(adapters):
        replica.submit(SimRequest(number, 5, tokens, [], adapter))
    return replica


def step(replica: Replica) -> None:
    replica.begin_step()
    replica.finish_step()


def current(gauge: LoraGauge) -> LoraLabels:
    """As a scraper finds it."""
    return max(gauge.series, key=lambda labels: gauge.series[labels])


class TestLabels:
    def test_both_list_the_adapters_of_requests_that_have_a_token(self) -> None:
        replica = replica_with(2, "a", "b", "a", "", "c")
        gauge = LoraGauge(replica)
        gauge.stamp(1.0)
        assert current(gauge) == ("", "")
        step(replica)
        gauge.stamp(2.0)
        # c waits for a slot.
        assert current(gauge) == ("a,b", "a,b")

    def test_older_releases_tell_running_from_waiting(self) -> None:
        replica = replica_with(2, "a", "b", "a", "", "c")
        gauge = LoraGauge(replica, separate=True)
        gauge.stamp(1.0)
        assert current(gauge) == ("", "a,b,c")
        step(replica)
        gauge.stamp(2.0)
        assert current(gauge) == ("a,b", "c")

    def test_an_adapter_that_is_loaded_and_unused_is_not_listed(self) -> None:
        replica = replica_with(2, "a", tokens=1)
        gauge = LoraGauge(replica)
        step(replica)
        gauge.stamp(1.0)
        assert replica.loras.in_slots == ["a"]
        assert current(gauge) == ("", "")


class TestStaleSeries:
    def test_nothing_is_told_before_the_first_step(self) -> None:
        assert LoraGauge(replica_with(2)).series == {}

    def test_a_set_of_labels_stays_with_the_time_it_was_last_true(self) -> None:
        replica = replica_with(1, "a", "b", tokens=2)
        gauge = LoraGauge(replica)
        for now in (1.0, 2.0, 3.0, 4.0):
            step(replica)
            gauge.stamp(now)
        assert gauge.series == {("a", "a"): 1.0, ("", ""): 4.0, ("b", "b"): 3.0}

    def test_the_current_one_is_not_always_the_last_one(self) -> None:
        replica = replica_with(1, "a", tokens=2)
        gauge = LoraGauge(replica)
        gauge.stamp(1.0)
        step(replica)
        gauge.stamp(2.0)
        step(replica)
        gauge.stamp(3.0)
        assert list(gauge.series) == [("", ""), ("a", "a")]
        assert current(gauge) == ("", "")

    def test_of_very_many_the_oldest_are_dropped(self) -> None:
        replica = replica_with(1)
        gauge = LoraGauge(replica)
        names = [f"adapter-{i}" for i in range(STALE_SERIES + 10)]
        for now, name in enumerate(names):
            replica.submit(SimRequest(now, 5, 2, [], name))
            step(replica)
            gauge.stamp(float(now))
            step(replica)
        assert len(gauge.series) == STALE_SERIES + 1
        assert current(gauge).running == names[-1]
        assert min(gauge.series.values()) == 9.0
