from __future__ import annotations

import pytest

from extproc.adapters.endpoints.screening import RejectionReason
from extproc.compiled import COMPILED
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.report import Load, Report
from extproc.core.fleet.signals import Reading, Signals
from extproc.core.routing.router import Router
from extproc.core.schema import ServiceSpec
from tests.adapters.documents import sample, telemetry_of
from tests.adapters.observability.telemetry.decisions import decision
from tests.core.builders import TWO_ADDRESSES, by_service, catalog, model_spec, router


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

    def test_each_request_counts_once_if_models_share_an_address(self) -> None:
        address = "10.0.0.1:8000"
        serving = router(*(model_spec(name, endpoints=[address]) for name in ("first", "second")))
        telemetry = telemetry_of(serving)
        decision(serving, "first")

        def counted() -> list[float]:
            inflight = "extproc_inflight_requests"
            models = "first", "second", "renamed"
            return [sample(telemetry, inflight, model=one, endpoint=address) for one in models]

        assert counted() == [1, 0, -1]
        serving.publish(catalog(model_spec("renamed", endpoints=[address])))
        assert counted() == [1, -1, 0]

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
