"""The gauge of adapters in use: its labels and its current series."""

from __future__ import annotations

from dataclasses import replace

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica, SimRequest
from extproc.lab.stand_ins.lora_gauge import STALE_SERIES, LoraGauge, LoraLabels


def replica_with(max_loras: int, *adapters: str, tokens: int = 3) -> Replica:
    """Return a replica with a short request for each adapter."""
    replica = Replica(replace(L4_LLAMA_3_1_8B_FP8, max_loras=max_loras))
    for number, adapter in enumerate(adapters):
        replica.submit(SimRequest(number, 5, tokens, [], adapter))
    return replica


def step(replica: Replica) -> None:
    replica.begin_step()
    replica.finish_step()


def current(gauge: LoraGauge) -> LoraLabels:
    """Return the labels of the current series."""
    return max(gauge.series, key=lambda labels: gauge.series[labels])


class TestLabels:
    def test_list_the_adapters_of_requests_with_a_token(self) -> None:
        replica = replica_with(2, "a", "b", "a", "", "c")
        gauge = LoraGauge(replica)
        gauge.stamp(1.0)
        assert current(gauge) == ("", "")
        step(replica)
        gauge.stamp(2.0)
        # Adapter c waits for a slot.
        assert current(gauge) == ("a,b", "a,b")

    def test_separate_running_and_waiting_in_older_releases(self) -> None:
        replica = replica_with(2, "a", "b", "a", "", "c")
        gauge = LoraGauge(replica, separate=True)
        gauge.stamp(1.0)
        assert current(gauge) == ("", "a,b,c")
        step(replica)
        gauge.stamp(2.0)
        assert current(gauge) == ("a,b", "c")

    def test_omit_an_unused_adapter(self) -> None:
        replica = replica_with(2, "a", tokens=1)
        gauge = LoraGauge(replica)
        step(replica)
        gauge.stamp(1.0)
        assert replica.loras.in_slots == ["a"]
        assert current(gauge) == ("", "")


class TestStaleSeries:
    def test_no_series_before_the_first_step(self) -> None:
        assert LoraGauge(replica_with(2)).series == {}

    def test_old_series_keep_their_last_time(self) -> None:
        replica = replica_with(1, "a", "b", tokens=2)
        gauge = LoraGauge(replica)
        for now in (1.0, 2.0, 3.0, 4.0):
            step(replica)
            gauge.stamp(now)
        assert gauge.series == {("a", "a"): 1.0, ("", ""): 4.0, ("b", "b"): 3.0}

    def test_current_series_may_come_before_old_ones(self) -> None:
        replica = replica_with(1, "a", tokens=2)
        gauge = LoraGauge(replica)
        gauge.stamp(1.0)
        step(replica)
        gauge.stamp(2.0)
        step(replica)
        gauge.stamp(3.0)
        assert list(gauge.series) == [("", ""), ("a", "a")]
        assert current(gauge) == ("", "")

    def test_oldest_series_are_dropped(self) -> None:
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
