from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.load_report import is_format, load_of
from extproc.core.fleet.report import Load
from tests.core.builders import brief, thorough

VLLM_TEXT = b"TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25"
VLLM_JSON = b'JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}}'


@pytest.mark.parametrize("report", [VLLM_TEXT, VLLM_JSON])
def test_reads_both_formats_of_vllm(report: bytes) -> None:
    assert load_of(report) == Load(3.0, 0.25)


@pytest.mark.parametrize(
    "report",
    [
        b"text named_metrics.kv_cache_usage_perc=0.25,named_metrics.num_requests_waiting=3",
        b"  TEXT  named_metrics.num_requests_waiting = 3 ,named_metrics.kv_cache_usage_perc= .25  ",
        b"TEXT cpu_utilization=0.3, application_utilization=0.5, " + VLLM_TEXT[5:] + b", eps=0",
        b"TEXT named_metrics.lora=sql, utilization.gpu=x, , =, " + VLLM_TEXT[5:] + b",",
        b'Json {"cpu_utilization": 0.3, ' + VLLM_JSON[6:],
        VLLM_JSON.replace(b"0.25", b"25e-2").replace(b": {", b': {"x": [], "y": null, '),
        VLLM_JSON.replace(b"3.0", b'"3"'),
    ],
)
def test_accepts_any_order_and_additional_metrics(report: bytes) -> None:
    assert load_of(report) == Load(3.0, 0.25)


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"TEXT", id="nothing after the format"),
        pytest.param(b"BIN CgkJMzMzMzMzC0A=", id="a format that is not read"),
        pytest.param(VLLM_TEXT[5:], id="without the format"),
        pytest.param(b"TEXT " + VLLM_JSON[5:], id="the other format"),
        pytest.param(b"JSON " + VLLM_TEXT[5:], id="the other way round"),
        pytest.param(VLLM_TEXT[:60], id="cut"),
        pytest.param(b"TEXT named_metrics.num_requests_waiting=3.0", id="one of the two"),
        pytest.param(b'JSON {"named_metrics": {"kv_cache_usage_perc": 1}}', id="the other"),
        pytest.param(b'JSON {"num_requests_waiting": 3, "kv_cache_usage_perc": 1}', id="unnamed"),
        pytest.param(b'JSON {"named_metrics": [1, 2]}', id="a list of metrics"),
        pytest.param(b"JSON [1]", id="a list"),
        pytest.param(b"JSON \xff", id="no UTF-8"),
        pytest.param(b"TEXT\xff \xff=\xff", id="no text"),
        pytest.param(VLLM_JSON.replace(b"3.0", b"true"), id="a truth value"),
        pytest.param(VLLM_JSON.replace(b"3.0", b"null"), id="a null"),
        pytest.param(VLLM_JSON.replace(b"3.0", b"[3]"), id="a list for a number"),
        pytest.param(VLLM_JSON.replace(b"3.0", b"9" * 400), id="400 digits"),
        pytest.param(VLLM_TEXT + b" " * 5_000, id="too long"),
        *(
            pytest.param(report.replace(b"3.0", number), id=f"{report[:4].decode()} {number!r}")
            for report in (VLLM_TEXT, VLLM_JSON)
            for number in (
                b"-1",
                b"NaN",
                b"Infinity",
                b"1e999",
                b"-Infinity",
                b"three",
                b"",
                b"1e308",
            )
        ),
        *(
            pytest.param(
                report.replace(b"0.25", number), id=f"usage {report[:4].decode()} {number!r}"
            )
            for report in (VLLM_TEXT, VLLM_JSON)
            for number in (b"25", b"100", b"1e308", b"-0.1", b"NaN")
        ),
    ],
)
def test_returns_none_without_two_plausible_numbers(report: bytes) -> None:
    assert load_of(report) is None


@brief
@given(st.floats(0, 1e6), st.floats(0, 1))
def test_keeps_the_reported_numbers(waiting: float, kv_usage: float) -> None:
    metrics = {"num_requests_waiting": waiting, "kv_cache_usage_perc": kv_usage}
    text = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
    for report in (f"TEXT {text}", f"JSON {json.dumps({'named_metrics': metrics})}"):
        assert load_of(report.encode()) == Load(waiting, kv_usage)


@thorough
@given(
    st.binary()
    | st.tuples(st.sampled_from([b"TEXT ", b"JSON ", b'JSON {"named_metrics": ']), st.binary()).map(
        b"".join
    )
)
def test_never_raises(report: bytes) -> None:
    load = load_of(report)
    assert load is None or (0 <= load.waiting <= 1_000_000 and 0 <= load.kv_usage <= 1)


def test_knows_two_formats() -> None:
    assert all(map(is_format, ["TEXT", "JSON", "text", " Json "]))
    assert not any(map(is_format, ["", "BIN", "TEXT,JSON", "yes"]))
