from __future__ import annotations

import pytest

from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.conversation.usage import Usage
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.report import Load, Report
from extproc.core.routing.router import Router
from extproc.core.strategies import Prediction
from tests.adapters.documents import sample, telemetry_of
from tests.adapters.observability.telemetry.decisions import decision
from tests.core.builders import TWO_ADDRESSES, catalog, model_spec, router


class TestPrompts:
    predicted = Prediction(prompt_tokens=400.0, cached_tokens=300.0)

    def of(self, telemetry: Telemetry, name: str, model: str = "llama") -> float:
        return sample(telemetry, f"extproc_{name}_total", model=model)

    def errors(self, telemetry: Telemetry, up_to: str = "+Inf") -> float:
        """Return the number of predictions whose error is at most `bound`."""
        name = "extproc_hit_prediction_error_bucket"
        return sample(telemetry, name, le=up_to, model="llama")

    def test_prediction_counts_when_request_is_routed(self) -> None:
        serving = router()
        telemetry = telemetry_of(serving)
        for _ in range(2):
            routed = decision(serving)._replace(prediction=self.predicted)
            telemetry.decided(routed, 0.0001)
        assert self.of(telemetry, "prompt_tokens") == 800
        assert self.of(telemetry, "predicted_cached_tokens") == 600
        assert self.of(telemetry, "answered_prompt_tokens") == 0
        assert self.errors(telemetry) == 0

    def test_nothing_counts_without_prediction(self) -> None:
        serving = router()
        telemetry = telemetry_of(serving)
        telemetry.decided(decision(serving), 0.0001)
        assert self.of(telemetry, "prompt_tokens") == -1

    def test_usage_of_responses_counts(self) -> None:
        telemetry = telemetry_of(router())
        telemetry.answered("llama", Usage(402, 384), self.predicted)
        telemetry.answered("llama", Usage(98, 16), self.predicted)
        assert self.of(telemetry, "answered_prompt_tokens") == 500
        assert self.of(telemetry, "answered_cached_tokens") == 400

    def test_response_without_cached_tokens_does_not_count(self) -> None:
        telemetry = telemetry_of(router())
        telemetry.answered("llama", Usage(402), self.predicted)
        assert self.of(telemetry, "answered_prompt_tokens") == -1

    @pytest.mark.parametrize(
        ("cached", "below", "above"),
        [
            pytest.param(300, "-0.02", "0.02", id="as predicted"),
            pytest.param(100, "0.2", "0.5", id="half as much"),
            pytest.param(0, "0.5", "1.0", id="nothing"),
            pytest.param(400, "-0.5", "-0.2", id="all"),
        ],
    )
    def test_error_is_predicted_minus_actual_share(
        self, cached: int, below: str, above: str
    ) -> None:
        telemetry = telemetry_of(router())
        telemetry.answered("llama", Usage(400, cached), self.predicted)
        assert (self.errors(telemetry, below), self.errors(telemetry, above)) == (0, 1)

    def test_no_error_if_another_endpoint_responded(self) -> None:
        telemetry = telemetry_of(router())
        telemetry.answered("llama", Usage(402, 384), None)
        assert self.of(telemetry, "answered_cached_tokens") == 384
        assert self.errors(telemetry) == 0

    def test_count_by_model(self) -> None:
        telemetry = telemetry_of(router())
        for model, cached in (("llama", 1), ("qwen", 2), ("llama", 4)):
            telemetry.answered(model, Usage(400, cached), self.predicted)
        assert self.of(telemetry, "answered_cached_tokens", "llama") == 5
        assert self.of(telemetry, "answered_cached_tokens", "qwen") == 2


class TestPrefixes:
    def serving(self) -> Router:
        serving = Router(Fleet())
        serving.publish(catalog(model_spec(strategy="PrefixCache"), model_spec("b")))
        serving.fleet.signals.set_endpoints(TWO_ADDRESSES)
        return serving

    def test_estimated_blocks_of_endpoints_are_exposed(self) -> None:
        serving, (one, two) = self.serving(), TWO_ADDRESSES
        serving.fleet.signals.prefixes.sent(one, (1, 2, 3))
        telemetry, name = telemetry_of(serving), "extproc_prefix_index_blocks"
        assert sample(telemetry, name, model="llama", endpoint=one) == 3
        assert sample(telemetry, name, model="llama", endpoint=two) == 0
        assert sample(telemetry, name, model="b", endpoint=one) == -1, "its strategy has no index"

    def test_cached_tokens_reported_by_endpoints_are_exposed(self) -> None:
        serving, (one, two) = self.serving(), TWO_ADDRESSES
        report = Report(Load(0.0, 0.0), 0.0, prompt_tokens=1206.0, cached_tokens=768.0)
        serving.fleet.signals.record_scrape(one, report, inflight=0)
        serving.fleet.signals.record_scrape(two, Report(Load(0.0, 0.0), 0.0), inflight=0)
        telemetry = telemetry_of(serving)
        prompt, cached = (
            "extproc_endpoint_prompt_tokens_total",
            "extproc_endpoint_cached_tokens_total",
        )
        assert sample(telemetry, prompt, model="llama", endpoint=one) == 1206
        assert sample(telemetry, cached, model="llama", endpoint=one) == 768
        assert sample(telemetry, prompt, model="llama", endpoint=two) == -1, "it is not reported"
        assert sample(telemetry, prompt, model="b", endpoint=one) == -1, "its strategy reads none"

    def test_cached_tokens_are_missing_after_a_load_report_only(self) -> None:
        serving, (one, _) = self.serving(), TWO_ADDRESSES
        serving.fleet.signals.record_load_report(one, Load(0.0, 0.0))
        name = "extproc_endpoint_prompt_tokens_total"
        assert sample(telemetry_of(serving), name, model="llama", endpoint=one) == -1
