"""The definitions, on runs that can be calculated by hand, and the printed block."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from extproc.lab.measures.published import row_of
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import Summary, block, more, summarize

MakeRun = Callable[..., Run]

# As published for PrefixHash at 800 concurrent requests.
PUBLISHED_BLOCK = [
    "============ Serving Benchmark Result ============",
    "Successful requests:                     8000      ",
    "Benchmark duration (s):                  104.67    ",
    "Total input tokens:                      6656338   ",
    "Total generated tokens:                  608447    ",
    "Request throughput (req/s):              76.43     ",
    "Output token throughput (tok/s):         5813.11   ",
    "Total Token throughput (tok/s):          69407.79  ",
    "---------------Time to First Token----------------",
    "Mean TTFT (ms):                          280.20    ",
    "Median TTFT (ms):                        239.80    ",
    "P99 TTFT (ms):                           1260.53   ",
    "-----Time per Output Token (excl. 1st token)------",
    "Mean TPOT (ms):                          86.55     ",
    "Median TPOT (ms):                        91.13     ",
    "P99 TPOT (ms):                           139.47    ",
    "---------------Inter-token Latency----------------",
    "Mean ITL (ms):                           85.78     ",
    "Median ITL (ms):                         77.35     ",
    "P99 ITL (ms):                            272.04    ",
    "==================================================",
]


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("completed", 3),
        ("failed", 1),
        ("duration", 10),
        # The failed request's tokens do not count.
        ("total_input_tokens", 600),
        ("total_output_tokens", 17),
        ("request_throughput", 0.3),
        ("requests_per_minute", 18),
        ("input_throughput", 60),
        ("output_throughput", 1.7),
        ("total_token_throughput", 61.7),
        # 500, 1000 and 250 ms from sending; the second waited another 1000 before.
        ("mean_ttft_ms", 1750 / 3),
        ("median_ttft_ms", 500),
        ("std_ttft_ms", math.sqrt((500**2 + 1000**2 + 250**2) / 3 - (1750 / 3) ** 2)),
        ("p90_ttft_ms", 900),
        ("p95_ttft_ms", 950),
        ("p99_ttft_ms", 990),
        ("mean_wanted_ttft_ms", 2750 / 3),
        # 1 s over 10 tokens and 2 s over 4; the request of one token has none.
        ("mean_tpot_ms", 300),
        # All 14 gaps, so the longer response weighs more.
        ("mean_itl_ms", 3000 / 14),
        ("median_itl_ms", 100),
        ("p99_itl_ms", 500),
        ("mean_e2el_ms", (1500 + 1000 + 2250) / 3),
        ("mean_time_per_token_ms", (1500 / 11 + 1000 / 1 + 2250 / 5) / 3),
        ("mean_token_rate", (11 / 1.5 + 1 / 1 + 5 / 2.25) / 3),
        # Only the requests with known cached tokens.
        ("hit_rate", 200 / 400),
        ("load_spread", 2 / 1.5),
        ("client_busy", 0.25),
    ],
)
def test_definitions(make_run: MakeRun, metric: str, value: float) -> None:
    assert summarize(make_run(client_busy=0.25)).metric(metric) == pytest.approx(value)


def test_unknown_figures_are_none(make_run: MakeRun) -> None:
    summary = summarize(make_run(cached_tokens=[-1] * 4, endpoint=[-1] * 4))
    assert summary.hit_rate is None
    assert summary.load_spread is None


def test_no_cached_tokens_is_a_hit_rate_of_zero(make_run: MakeRun) -> None:
    assert summarize(make_run(cached_tokens=[0, 0, 0, -1])).hit_rate == 0


def test_endpoints_without_requests_count_if_the_run_notes_them(make_run: MakeRun) -> None:
    assert summarize(make_run(notes={"endpoints": 3})).load_spread == pytest.approx(2)


def test_the_block_has_zeroes_if_all_requests_fail(failed_run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = summarize(failed_run)
    assert (summary.completed, summary.failed, summary.total_output_tokens) == (0, 4, 0)
    assert math.isnan(summary.mean_ttft_ms)
    assert math.isnan(summary.request_throughput)
    values = [line[41:].strip() for line in block(summary).splitlines() if ":" in line]
    assert values == ["0", "0.00", "0", "0", *["0.00"] * 12]


def test_one_request_of_one_token(make_run: MakeRun) -> None:
    one = {name: [0] for name in ("wanted", "sent", "cached_tokens", "endpoint")}
    summary = summarize(
        make_run(first=[0.5], last=[0.5], prompt_tokens=[8], output_tokens=[1], gaps=[], **one)
    )
    assert (summary.mean_ttft_ms, summary.std_ttft_ms, summary.p99_ttft_ms) == (500, 0, 500)
    assert math.isnan(summary.mean_tpot_ms)
    assert math.isnan(summary.mean_itl_ms)
    assert summary.mean_time_per_token_ms == 500
    assert summary.load_spread == 1


def test_responses_without_tokens_or_time_have_no_rate(make_run: MakeRun) -> None:
    now = [0.0, 1.0, 1.0, 2.0]
    summary = summarize(make_run(first=now, last=now, output_tokens=[0] * 4))
    assert math.isnan(summary.mean_token_rate)
    assert math.isnan(summary.mean_time_per_token_ms)


def test_a_metric_can_be_in_the_notes(make_run: MakeRun) -> None:
    summary = summarize(make_run(notes={"preemptions": 7, "engine": "v1", "hit_rate": 0.9}))
    assert summary.metric("preemptions") == 7
    assert summary.metric("hit_rate") == 0.5  # ours goes first
    assert summary.metric("engine") is None
    assert summary.metric("strategy") is None
    assert summary.metric("no_such") is None


def test_the_block_matches_the_script(make_run: MakeRun) -> None:
    row = row_of("kubeai-chat-800", "PrefixHash")
    assert row is not None
    integers = {one.name for one in fields(Summary) if one.type == "int"}
    published = {
        name: int(value) if name in integers else value for name, (value,) in row.metrics.items()
    }
    summary = replace(summarize(make_run()), **published)  # type: ignore[arg-type]
    assert block(summary) == "\n".join(PUBLISHED_BLOCK)


def test_other_figures_follow_in_the_scripts_format(make_run: MakeRun) -> None:
    notes = {"preemptions": 7, "engine": "v1"}
    summary = summarize(make_run(notes=notes, endpoint=[-1] * 4, client_busy=0.5))
    lines = more(summary).splitlines()
    assert lines[0] == "-------------Not in benchmark_serving-------------"
    assert lines[-1] == "=" * 50
    assert "Failed requests:                         1         " in lines
    assert "Prefix cache hit rate:                   50.0%     " in lines
    assert "Load spread (busiest over mean):         -         " in lines
    assert "Client busy:                             50.0%     " in lines
    assert "Mean TTFT with client's wait (ms):       916.67    " in lines
    assert "Preemptions:                             7         " in lines
    assert {len(line) for line in lines} == {50, 51}
    assert "v1" not in more(summary)
