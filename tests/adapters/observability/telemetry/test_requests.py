from __future__ import annotations

import pytest

from extproc.core.conversation.verdict import Listed, Passed, Verdict
from extproc.core.request.refusals import ModelNotFound, NoEndpoints, Refusal, UnknownPath
from tests.adapters.documents import sample, telemetry_of
from tests.adapters.observability.telemetry.decisions import decision
from tests.core.builders import model_spec, router


class TestRequests:
    def test_routed_request_counts_by_model_and_strategy(self) -> None:
        serving = router(model_spec(adapters=["sql"]))
        telemetry = telemetry_of(serving)
        telemetry.decided(decision(serving, "sql"), 0.0001)
        labels = {"model": "llama", "outcome": "routed", "strategy": "PrefixHash"}
        assert sample(telemetry, "extproc_requests_total", **labels) == 1

    @pytest.mark.parametrize(
        ("refusal", "model", "outcome"),
        [
            (ModelNotFound("secret", ["llama"]), "unknown", "model_not_found"),
            (UnknownPath("GET", "/secret"), "unknown", "unknown_path"),
            (NoEndpoints("llama"), "llama", "no_endpoints"),
        ],
    )
    def test_refused_request_counts_by_code(
        self, refusal: Refusal, model: str, outcome: str
    ) -> None:
        telemetry = telemetry_of(router())
        telemetry.decided(refusal, 0.0001)
        labels = {"model": model, "outcome": outcome, "strategy": "none"}
        assert sample(telemetry, "extproc_requests_total", **labels) == 1

    @pytest.mark.parametrize(
        ("verdict", "outcome"), [(Listed(), "models_listed"), (Passed(), "passed")]
    )
    def test_request_without_decision_counts_as_passed_or_listed(
        self, verdict: Verdict, outcome: str
    ) -> None:
        telemetry = telemetry_of(router())
        telemetry.decided(verdict, 0.0001)
        labels = {"model": "unknown", "outcome": outcome, "strategy": "none"}
        assert sample(telemetry, "extproc_requests_total", **labels) == 1

    def test_aborted_request_counts_without_a_duration(self) -> None:
        telemetry = telemetry_of(router())
        telemetry.aborted()
        labels = {"model": "unknown", "outcome": "aborted", "strategy": "none"}
        assert sample(telemetry, "extproc_requests_total", **labels) == 1
        assert sample(telemetry, "extproc_decision_duration_seconds_count") == 0

    def test_decision_duration_is_observed(self) -> None:
        serving = router()
        telemetry = telemetry_of(serving)
        telemetry.decided(decision(serving), 0.00003)
        telemetry.decided(UnknownPath("GET", "/"), 0.5)
        name = "extproc_decision_duration_seconds"
        assert sample(telemetry, f"{name}_count") == 2
        assert sample(telemetry, f"{name}_bucket", le="2e-05") == 0
        assert sample(telemetry, f"{name}_bucket", le="5e-05") == 1
        assert sample(telemetry, f"{name}_bucket", le="+Inf") == 2


class TestHops:
    def test_are_counted_for_decisions_by_ring(self) -> None:
        serving = router(model_spec(meanLoadFactor=100))
        telemetry = telemetry_of(serving)
        home = decision(serving)
        for _ in range(3):
            serving.fleet.ledger.acquire("llama", home.lease.endpoint)
        telemetry.decided(home, 0.0001)
        telemetry.decided(decision(serving), 0.0001)
        assert sample(telemetry, "extproc_ring_hops_count") == 2
        assert sample(telemetry, "extproc_ring_hops_sum") == 1

    def test_are_not_counted_for_other_decisions(self) -> None:
        serving = router(model_spec("a", strategy="LeastLoad"), model_spec("llama"))
        telemetry = telemetry_of(serving)
        telemetry.decided(decision(serving, "a"), 0.0001)
        telemetry.decided(decision(serving, "llama", prompt=""), 0.0001)
        assert sample(telemetry, "extproc_ring_hops_count") == 0
