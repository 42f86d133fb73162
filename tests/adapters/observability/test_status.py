"""The data of the status page; tests/browser compares it with `/debug/state` and `/metrics`."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.adapters.observability.state import model_states
from extproc.adapters.observability.status import StatusReport
from extproc.core.fleet.engine_counters import FEW_MEANS
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.report import Load, Report, StepTotals
from extproc.core.routing.decision import Decision
from extproc.core.strategies import Reason
from tests.core.builders import model_spec
from tests.edge.streams import Sidecar

FOUR = [f"10.0.0.{number}:8000" for number in range(1, 5)]


def report_of(sidecar: Sidecar, **other: Any) -> StatusReport:
    router = sidecar.router
    return StatusReport(
        *(router.fleet, lambda: router.catalog, sidecar.telemetry),
        lambda read: model_states(router.fleet, router.catalog, read=read),
        lambda: None,
        **other,
    )


def decide(sidecar: Sidecar, prompt: str, model: str = "llama") -> Decision:
    decision = sidecar.router.decide(sidecar.router.resolve(model, {"prompt": prompt}, {}))
    sidecar.telemetry.decided(decision, 0.00002)
    return decision


def test_without_models() -> None:
    sidecar = Sidecar()
    sidecar.router.publish(type(sidecar.router.catalog)())
    document = report_of(sidecar).document("", 0)
    assert (document["models"], document["chosen"], document["inflight"]) == ([], None, 0)


def test_decisions_have_the_way_on_the_ring() -> None:
    sidecar = Sidecar(model_spec(endpoints=FOUR))
    sent = [decide(sidecar, "x" * 200) for _ in range(4)]
    shown = report_of(sidecar).document("", 0)["decisions"]
    assert shown["total"] == 4
    assert [one["endpoint"] for one in shown["new"]] == [one.address for one in sent]
    home = sent[0].address
    spilled = [one for one in shown["new"] if one["reason"] is Reason.BOUND]
    assert spilled
    for one in spilled:
        assert (one["walk"][0], one["walk"][-1]) == (home, one["endpoint"])
        assert len(one["walk"]) == one["hops"] + 1
    assert {one["key"] for one in shown["new"]} == {f"{sent[0].key:016x}"}


def test_only_new_decisions_are_sent_again() -> None:
    sidecar = Sidecar()
    report = report_of(sidecar)
    for _ in range(3):
        decide(sidecar, "x")
    assert [one["number"] for one in report.document("", 2)["decisions"]["new"]] == [3]
    assert report.document("", 3)["decisions"]["new"] == []


def test_bound_is_that_of_the_strategy() -> None:
    sidecar = Sidecar(model_spec(endpoints=FOUR))
    report = report_of(sidecar)
    assert report.document("", 0)["chosen"]["bound"] is None
    for number in range(7):
        decide(sidecar, f"prompt {number}")
    assert report.document("", 0)["chosen"]["bound"] == {"exact": 2.5, "requests": 2}


def test_ejected_endpoint_has_its_remaining_time() -> None:
    sidecar = Sidecar()
    address = decide(sidecar, "x").address
    ejection = sidecar.router.fleet.ejection
    for _ in range(3):
        ejection.record(address, Outcome.RESET)
    rows = {
        one["address"]: one for one in report_of(sidecar).document("", 0)["chosen"]["endpoints"]
    }
    assert (rows[address]["state"], rows[address]["ejection"]) == (
        "ejected",
        {"left": 5.0, "on_trial": False},
    )
    (other,) = rows.keys() - {address}
    assert "ejection" not in rows[other]


def test_new_and_slow_endpoints_have_their_weight() -> None:
    addresses = FOUR[:2]
    sidecar = Sidecar(model_spec(endpoints=FOUR[:3], strategy="PrefixCache"))
    signals = sidecar.router.fleet.signals
    report = report_of(sidecar)
    now = signals.clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signals, "clock", lambda: now)
        signals.set_endpoints(addresses)
        now += 100
        signals.set_endpoints(FOUR[:3])
        now += 7.5
        rows = report.document("", 0)["chosen"]["endpoints"]
        assert [one.get("slow_start") for one in rows] == [None, None, 0.25]
        now += 22.5
        assert not any("slow_start" in one for one in report.document("", 0)["chosen"]["endpoints"])
        for steps in range(0, 20 * (FEW_MEANS + 2), 20):
            for address, seconds in zip(FOUR[:3], (0.01, 0.03, 0.01), strict=True):
                totals = StepTotals(steps, 0, steps * seconds, steps)
                signals.record_scrape(address, Report(Load(0, 0), 0, steps=totals), inflight=0)
        rows = report.document("", 0)["chosen"]["endpoints"]
        assert [one.get("slowness") for one in rows] == [1.0, 3.0, 1.0]


def test_endpoint_of_two_models_counts_once() -> None:
    sidecar = Sidecar(model_spec(), model_spec("twin"))
    decide(sidecar, "x")
    decide(sidecar, "x", "twin")
    document = report_of(sidecar).document("", 0)
    assert document["inflight"] == 2
    assert [model["inflight"] for model in document["models"]] == [2, 2]


def test_only_the_chosen_model_is_read() -> None:
    sidecar = Sidecar(model_spec(), model_spec("twin"))
    read: list[str] = []

    def states(model: str) -> Any:
        read.append(model)
        return model_states(sidecar.router.fleet, sidecar.router.catalog, read=model)

    router = sidecar.router
    report = StatusReport(
        router.fleet, lambda: router.catalog, sidecar.telemetry, states, lambda: None
    )
    report.document("", 0)
    report.document("twin", 0)
    assert read == ["llama", "twin"]


def test_ring_version_changes_with_the_endpoints() -> None:
    sidecar = Sidecar()
    report = report_of(sidecar)
    before = report.document("", 0)["chosen"]["ring_version"]
    decide(sidecar, "x")
    assert report.document("", 0)["chosen"]["ring_version"] == before
    other = Sidecar(model_spec(endpoints=FOUR))
    sidecar.router.publish(other.router.catalog)
    assert report.document("", 0)["chosen"]["ring_version"] != before
    ring = report.ring("llama")
    assert ring
    assert ring["version"] == report.document("", 0)["chosen"]["ring_version"]
    assert report.ring("gone") is None


def test_last_error_of_the_configuration_is_shown_until_a_document_is_in_force() -> None:
    sidecar = Sidecar()
    report, configuration = report_of(sidecar), sidecar.telemetry.configuration
    configuration.reloaded(successfully=False, why="models[0].nam: unknown key")
    shown = report.document("", 0)["configuration"]
    assert shown["last_error"] == "models[0].nam: unknown key"
    configuration.reloaded(successfully=True)
    assert report.document("", 0)["configuration"]["last_error"] == ""
