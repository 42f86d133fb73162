"""The exact format of the load report header."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica, SimRequest
from extproc.lab.stand_ins.orca import report


def asked(format_: str, replica: Replica | None = None) -> dict[str, str]:
    return report({"endpoint-load-metrics-format": format_}, replica or Replica())


@pytest.mark.parametrize("format_", ["TEXT", "text"])
def test_text_lists_named_metrics(format_: str) -> None:
    value = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0"
    assert asked(format_) == {"endpoint-load-metrics": value}


@pytest.mark.parametrize("format_", ["JSON", "json"])
def test_json_is_an_object(format_: str) -> None:
    value = 'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}'
    assert asked(format_) == {"endpoint-load-metrics": value}


@pytest.mark.parametrize("format_", ["", "BIN", "text/plain"])
def test_other_formats_give_no_header(format_: str) -> None:
    assert asked(format_) == {}


def test_no_header_without_a_request_for_it() -> None:
    assert report({}, Replica()) == {}


def test_reports_the_load_at_the_end_of_the_last_step() -> None:
    replica = Replica(replace(L4_LLAMA_3_1_8B_FP8, kv_tokens=256, max_num_seqs=1))
    for number in range(3):
        replica.submit(SimRequest(number, 50, 2, [(number, i) for i in range(3)]))
    assert asked("TEXT", replica) == asked("TEXT")
    replica.begin_step()
    replica.finish_step()
    value = "TEXT named_metrics.num_requests_waiting=2.0, named_metrics.kv_cache_usage_perc=0.25"
    assert asked("TEXT", replica) == {"endpoint-load-metrics": value}
