from __future__ import annotations

from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.adapters.endpoints.screening import RejectionReason
from extproc.adapters.observability.telemetry import Telemetry
from extproc.compiled import COMPILED
from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.usage import Usage
from extproc.core.conversation.verdict import Listed, Passed, Verdict
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.signals import Load, Reading, Report, Signals
from extproc.core.request.refusals import ModelNotFound, NoEndpoints, Refusal, UnknownPath
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.core.schema import ServiceSpec
from extproc.core.strategies import Prediction
from tests.adapters.documents import sample, telemetry_of
from tests.core.builders import TWO_ADDRESSES, by_service, catalog, model_spec, router


def decision(serving: Router, model: str = "llama", prompt: str = "hello") -> Decision:
    return serving.decide(serving.resolve(model, {"prompt": prompt}, {}))


def test_every_documented_metric_exists_from_the_start() -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(telemetry_of(router()).exposition().decode())
    }
    promised = {
        "extproc_requests": "counter",
        "extproc_decision_duration_seconds": "histogram",
        "extproc_inflight_requests": "gauge",
        "extproc_endpoints": "gauge",
        "extproc_ring_hops": "histogram",
        "extproc_config_reloads": "counter",
        "extproc_config_last_reload_successful": "gauge",
        "extproc_discovery_age_seconds": "gauge",
        "extproc_endpoints_refused": "counter",
        "extproc_discovery_lists": "counter",
        "extproc_discovery_watches": "counter",
        "extproc_signal_readings": "counter",
        "extproc_ejections": "counter",
        "extproc_signals_age_seconds": "gauge",
        "extproc_prompt_tokens": "counter",
        "extproc_predicted_cached_tokens": "counter",
        "extproc_answered_prompt_tokens": "counter",
        "extproc_answered_cached_tokens": "counter",
        "extproc_hit_prediction_error": "histogram",
        "extproc_endpoint_prompt_tokens": "counter",
        "extproc_endpoint_cached_tokens": "counter",
        "extproc_prefix_index_blocks": "gauge",
        "extproc_log_lines_dropped": "counter",
    }
    assert {name: families[name].type for name in promised} == promised
    assert "process_resident_memory_bytes" in families


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


class TestEndpoints:
    def test_are_counted_by_state_and_their_requests_by_address(self) -> None:
        serving = router()
        telemetry = telemetry_of(serving)
        chosen = decision(serving).address
        (other,) = set(TWO_ADDRESSES) - {chosen}
        inflight = "extproc_inflight_requests"
        assert sample(telemetry, inflight, model="llama", endpoint=chosen) == 1
        assert sample(telemetry, inflight, model="llama", endpoint=other) == 0
        assert sample(telemetry, "extproc_endpoints", model="llama", state="ready") == 2
        assert sample(telemetry, "extproc_endpoints", model="llama", state="draining") == 0

    def test_failing_ones_are_ejected_until_they_serve_again(self) -> None:
        serving = router()
        telemetry = telemetry_of(serving)
        ejection, failing = serving.fleet.ejection, TWO_ADDRESSES[0]
        for _ in range(3):
            ejection.record(failing, Outcome.RESET)
        assert sample(telemetry, "extproc_endpoints", model="llama", state="ready") == 1
        assert sample(telemetry, "extproc_endpoints", model="llama", state="ejected") == 1
        ejection.record(failing, Outcome.SERVED, ejection.chosen(failing))
        assert sample(telemetry, "extproc_endpoints", model="llama", state="ready") == 2
        assert sample(telemetry, "extproc_endpoints", model="llama", state="ejected") == 0

    def test_removed_ones_are_draining_until_they_are_empty(self) -> None:
        serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
        telemetry = telemetry_of(serving)
        last = decision(serving)
        serving.publish(catalog(model_spec(endpoints=["10.0.0.2:8000"])))
        labels = {"model": "llama", "endpoint": "10.0.0.1:8000"}
        assert sample(telemetry, "extproc_inflight_requests", **labels) == 1
        assert sample(telemetry, "extproc_endpoints", model="llama", state="draining") == 1
        last.lease.release()
        assert sample(telemetry, "extproc_inflight_requests", **labels) == -1
        assert sample(telemetry, "extproc_endpoints", model="llama", state="draining") == 0

    def test_are_counted_for_removed_model_while_it_has_requests(self) -> None:
        serving = router(model_spec("old"))
        telemetry = telemetry_of(serving)
        last = decision(serving, "old")
        serving.publish(catalog(model_spec("new")))
        assert sample(telemetry, "extproc_endpoints", model="old", state="draining") == 1
        assert sample(telemetry, "extproc_endpoints", model="old", state="ready") == 0
        last.lease.release()
        assert sample(telemetry, "extproc_endpoints", model="old", state="draining") == -1

    def test_count_is_zero_for_model_without_endpoints(self) -> None:
        telemetry = telemetry_of(router(by_service("llama")))
        assert sample(telemetry, "extproc_endpoints", model="llama", state="ready") == 0
        assert sample(telemetry, "extproc_endpoints", model="llama", state="draining") == 0

    @pytest.mark.skipif(COMPILED, reason="nothing here can stand in for what is compiled")
    def test_are_counted_without_reading_signals(self) -> None:
        class Unread(Signals):
            def latest(self, address: str) -> Reading | None:
                raise AssertionError(address)

        serving = Router(Fleet(signals=Unread(lambda: 0.0)))
        serving.publish(catalog(model_spec()))
        assert sample(telemetry_of(serving), "extproc_endpoints", model="llama", state="ready") == 2

    def test_age_of_static_list_is_zero(self) -> None:
        telemetry = telemetry_of(router())
        assert sample(telemetry, "extproc_discovery_age_seconds", model="llama") == 0


class TestDiscovery:
    def test_age_is_that_of_the_models_source(self) -> None:
        telemetry = telemetry_of(
            router(by_service("llama", name="a"), by_service("qwen", name="b"))
        )
        ages = {"service ns/a": 1.5, "service ns/b": 30.0}
        telemetry.set_ages(lambda source: ages[str(source)])
        assert sample(telemetry, "extproc_discovery_age_seconds", model="llama") == 1.5
        assert sample(telemetry, "extproc_discovery_age_seconds", model="qwen") == 30

    def test_counts_rejected_addresses_by_source_and_reason_without_address(self) -> None:
        telemetry = telemetry_of(router())
        source = ServiceSpec(namespace="ns", name="a", port=8000)
        for _ in range(2):
            telemetry.discovery.endpoint_refused(source, RejectionReason.LOOPBACK)
        telemetry.discovery.endpoint_refused(source, RejectionReason.API_SERVER)
        name, shown = "extproc_endpoints_refused_total", "service ns/a"
        assert sample(telemetry, name, reason="loopback", source=shown) == 2
        assert sample(telemetry, name, reason="api_server", source=shown) == 1

    def test_counts_lists_and_watches_by_result(self) -> None:
        telemetry = telemetry_of(router())
        telemetry.discovery.listed("endpointslices", "ok")
        telemetry.discovery.watched("endpointslices", "expired")
        telemetry.discovery.watched("endpointslices", "expired")
        labels = {"resource": "endpointslices"}
        lists, watches = "extproc_discovery_lists_total", "extproc_discovery_watches_total"
        assert sample(telemetry, lists, **labels, result="ok") == 1
        assert sample(telemetry, watches, **labels, result="expired") == 2


def test_client_text_never_becomes_a_label() -> None:
    serving = router()
    telemetry = telemetry_of(serving)
    for raw in (
        b'{"model": "secret", "prompt": "secret"}',
        b'{"model": "llama_secret"}',
        b"secret",
    ):
        conversation = Conversation(serving, Random(0))
        headers = {":path": b"/v1/completions", ":method": b"POST", "x-model": b"secret"}
        conversation.receive(Event(Kind.REQUEST_HEADERS, headers=headers))
        conversation.receive(Event(Kind.REQUEST_BODY, body=raw, end_of_stream=True))
        assert conversation.verdict is not None
        telemetry.decided(conversation.verdict, 0.0001)
    assert b"secret" not in telemetry.exposition()


def test_reloads_count_by_result() -> None:
    telemetry = telemetry_of(router())
    telemetry.reloaded(successfully=True)
    telemetry.reloaded(successfully=False)
    telemetry.reloaded(successfully=False)
    assert sample(telemetry, "extproc_config_reloads_total", result="success") == 1
    assert sample(telemetry, "extproc_config_reloads_total", result="failure") == 2
    assert sample(telemetry, "extproc_config_last_reload_successful") == 0


def test_each_telemetry_has_its_own_registry() -> None:
    first, second = telemetry_of(router()), telemetry_of(router())
    first.reloaded(successfully=True)
    assert sample(second, "extproc_config_reloads_total", result="success") == 0


def test_any_model_name_gives_valid_exposition() -> None:
    telemetry = telemetry_of(router(model_spec('a"b\\c\nd世')))
    families = list(text_string_to_metric_families(telemetry.exposition().decode()))
    (age,) = (family for family in families if family.name == "extproc_discovery_age_seconds")
    assert age.samples[0].labels == {"model": 'a"b\\c\nd世'}


class TestSignals:
    def test_readings_count_by_path_and_result(self) -> None:
        telemetry = telemetry_of(router())
        for result in ("ok", "ok", "timeout"):
            telemetry.signal_read("/metrics", result)
        telemetry.signal_read("/v1/models", "status")
        name = "extproc_signal_readings_total"
        assert sample(telemetry, name, path="/metrics", result="ok") == 2
        assert sample(telemetry, name, path="/metrics", result="timeout") == 1
        assert sample(telemetry, name, path="/v1/models", result="status") == 1

    def test_age_is_that_of_last_reading_or_of_the_endpoint(self) -> None:
        now = 100.0
        serving = Router(Fleet(lambda: now))
        serving.publish(catalog(model_spec(strategy="LeastQueue"), model_spec("b")))
        telemetry, (one, two) = telemetry_of(serving), TWO_ADDRESSES
        name = "extproc_signals_age_seconds"
        assert sample(telemetry, name, model="llama", endpoint=one) == -1
        serving.fleet.signals.set_endpoints(TWO_ADDRESSES)
        now = 105.0
        serving.fleet.signals.record_scrape(one, Report(Load(0.0, 0.0), 0.0), inflight=0)
        now = 107.0
        assert sample(telemetry, name, model="llama", endpoint=one) == 2
        assert sample(telemetry, name, model="llama", endpoint=two) == 7
        assert sample(telemetry, name, model="b", endpoint=one) == -1, "its strategy reads none"


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
