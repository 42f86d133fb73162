from __future__ import annotations

from random import Random

from prometheus_client.parser import text_string_to_metric_families

from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.state_machine import Conversation
from tests.adapters.documents import sample, telemetry_of
from tests.core.builders import model_spec, router


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
        "extproc_config_age_seconds": "gauge",
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


def test_metrics_of_the_shared_state_exist_only_if_it_is_shared() -> None:
    telemetry = telemetry_of(router())
    assert b"extproc_shared_state" not in telemetry.exposition()
    telemetry.share_state()
    families = text_string_to_metric_families(telemetry.exposition().decode())
    assert {one.name: one.type for one in families if "shared_state" in one.name} == {
        "extproc_shared_state_connected": "gauge",
        "extproc_shared_state_peers": "gauge",
        "extproc_shared_state_lag_seconds": "histogram",
        "extproc_shared_state_messages": "counter",
        "extproc_shared_state_bytes": "counter",
    }


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
    telemetry.configuration.reloaded(successfully=True)
    telemetry.configuration.reloaded(successfully=False)
    telemetry.configuration.reloaded(successfully=False)
    assert sample(telemetry, "extproc_config_reloads_total", result="success") == 1
    assert sample(telemetry, "extproc_config_reloads_total", result="failure") == 2
    assert sample(telemetry, "extproc_config_last_reload_successful") == 0


def test_each_telemetry_has_its_own_registry() -> None:
    first, second = telemetry_of(router()), telemetry_of(router())
    first.configuration.reloaded(successfully=True)
    assert sample(second, "extproc_config_reloads_total", result="success") == 0


def test_any_model_name_gives_valid_exposition() -> None:
    telemetry = telemetry_of(router(model_spec('a"b\\c d世')))
    families = list(text_string_to_metric_families(telemetry.exposition().decode()))
    (age,) = (family for family in families if family.name == "extproc_discovery_age_seconds")
    assert age.samples[0].labels == {"model": 'a"b\\c d世'}
