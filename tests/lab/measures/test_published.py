"""The published tables: they load, and the claims based on them follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from extproc.lab.measures.published import (
    PublishedRow,
    PublishedTable,
    compare,
    row_of,
    table_of,
    tables,
)
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import summarize

MakeRun = Callable[..., Run]


def value(workload: str, strategy: str, metric: str, *, second_run: bool = False) -> float:
    row = row_of(workload, strategy, second_run=second_run)
    assert row is not None
    published = row.value(metric)
    assert published is not None
    return published


def ratio(workload: str, metric: str, strategy: str, baseline: str) -> float:
    return value(workload, strategy, metric) / value(workload, baseline, metric)


def text(table: Table | None) -> str:
    assert table is not None
    console = Console(file=StringIO(), width=100)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_all_tables_load() -> None:
    rows = {table.workload: len(table.rows) for table in tables()}
    assert rows == {
        **{f"kubeai-chat-{load}": 3 for load in (800, 1600, 3200, 8000)},
        "kubeai-threads-300": 3,
        "kubeai-threads-600": 3,
        "kubeai-threads-1200": 6,
        "blog-2xL4": 2,
        "blog-8xH100": 3,
        "lora-0": 5,
        "lora-10": 7,
        "lora-4": 7,
    }


def test_rows_are_unambiguous_and_tables_are_marked_as_fitted_or_not() -> None:
    for table in tables():
        keys = [(row.strategy, row.second_run) for row in table.rows]
        assert len(set(keys)) == len(keys)
        assert table.fitted == table.workload.startswith(("kubeai-chat", "blog-8xH100", "lora"))
        assert "\n" not in table.source


@pytest.mark.parametrize(
    ("metric", "improvement"),
    [("mean_ttft_ms", 164), ("mean_itl_ms", 1.43)],
)
def test_8000_requests_least_load_takes_longer_by(metric: str, improvement: float) -> None:
    # "164x" and "143 %" are increases, not ratios.
    times = ratio("kubeai-chat-8000", metric, "LeastLoad", "PrefixHash")
    assert times - 1 == pytest.approx(improvement, rel=5e-3)


def test_8000_requests_41_percent_more_throughput() -> None:
    times = ratio("kubeai-chat-8000", "total_token_throughput", "PrefixHash", "LeastLoad")
    assert round(100 * (times - 1)) == 41


def test_1200_threads_95_percent_less_ttft_and_127_percent_more_throughput() -> None:
    ttft = ratio("kubeai-threads-1200", "mean_ttft_ms", "PrefixHash", "Random")
    throughput = ratio("kubeai-threads-1200", "total_token_throughput", "PrefixHash", "Random")
    assert round(100 * (1 - ttft)) == 95
    assert round(100 * (throughput - 1)) == 127


def test_1200_threads_repeated_show_the_noise() -> None:
    for strategy, less in (("PrefixHash", 0.33), ("LeastLoad", 0.20), ("Random", -0.47)):
        first = value("kubeai-threads-1200", strategy, "mean_ttft_ms")
        again = value("kubeai-threads-1200", strategy, "mean_ttft_ms", second_run=True)
        assert again / first - 1 == pytest.approx(less, abs=0.01)


def test_two_l4_34_percent_less_time_per_token() -> None:
    times = ratio("blog-2xL4", "mean_time_per_token_ms", "PrefixHash", "LeastLoad")
    assert round(100 * (1 - times)) == 34


def test_eight_h100_12_percent_is_what_least_load_takes_more() -> None:
    times = ratio("blog-8xH100", "mean_time_per_token_ms", "PrefixHash", "LeastLoad")
    assert round(100 * (1 / times - 1)) == 12
    assert round(100 * (1 - times)) == 11


def test_throughputs_are_tokens_over_seconds() -> None:
    """A wrongly copied figure would not fit the others of its row."""
    checked = 0
    for row in (row for table in tables() for row in table.rows):
        given, made = row.value("total_input_tokens"), row.value("total_output_tokens")
        seconds, requests = row.value("duration"), row.value("completed")
        if given is None or made is None or seconds is None or requests is None:
            continue
        for metric, amount in (
            ("request_throughput", requests),
            ("input_throughput", given),
            ("output_throughput", made),
            ("total_token_throughput", given + made),
        ):
            published = row.value(metric)
            if published is not None:
                assert published * seconds == pytest.approx(amount, rel=6e-4)
                checked += 1
    assert checked == 12 * 3 + 12 * 2 + 5 * 4


def test_claims_of_the_lora_tables() -> None:
    best = {
        workload: min(
            (table.rows if (table := table_of(workload)) else ()),
            key=lambda row: row.value("mean_ttft_ms") or 0,
        ).strategy
        for workload in ("lora-0", "lora-10", "lora-4")
    }
    assert best == {"lora-0": "LowLatency", "lora-10": "LowLatency", "lora-4": "QueueKVCache"}
    row = row_of("lora-0", "LowLatency")
    assert row is not None
    assert row.metrics["requests_per_minute"] == (91.68, 88.87, 93.35, 89.70, 85.18)
    assert row.value("mean_ttft_ms") == pytest.approx(584)


def test_unpublished_workloads_have_no_row() -> None:
    assert row_of("kubeai-chat-800", "LowLatency") is None
    assert row_of("kubeai-chat-800", "PrefixHash", second_run=True) is None
    assert row_of("nowhere", "PrefixHash") is None
    assert table_of("nowhere") is None


@pytest.mark.parametrize(
    ("metrics", "complaint"),
    [
        ({"mean_tfft_ms": 1}, "not the name of a metric"),
        ({"strategy": 1}, "not the name of a metric"),
        ({"mean_ttft_ms": "1"}, "valid number"),
        ({"mean_ttft_ms": []}, "at least 1 item"),
    ],
)
def test_refuses_misspelled_metrics_and_strategies(
    metrics: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        PublishedRow.model_validate({"strategy": "Random", "label": "x", "metrics": metrics})


def test_refuses_unknown_keys() -> None:
    document = {"workload": "w", "source": "s", "fitted": True, "rows": [], "note": "n"}
    with pytest.raises(ValidationError, match="note"):
        PublishedTable.model_validate(document)


def test_comparison_pairs_by_name(make_run: MakeRun) -> None:
    summary = summarize(make_run(workload="kubeai-chat-800"))
    lines = text(compare(replace(summary, mean_ttft_ms=560.40))).splitlines()
    ttft = next(line for line in lines if "Mean TTFT" in line)
    assert ttft.split() == ["Mean", "TTFT", "(ms)", "280.20", "560.40", "2.00"]
    tokens = next(line for line in lines if "Total input" in line)
    assert tokens.split() == ["Total", "input", "tokens", "6,656,338", "600", "0.00"]
    caption = " ".join(" ".join(lines[-3:]).split())
    assert caption.endswith("800 concurrent requests; used to fit the replica's model")


def test_comparison_shows_several_runs_and_missing_figures(make_run: MakeRun) -> None:
    summary = summarize(
        make_run(workload="lora-10", strategy="LeastRequest", notes={"mean_queue_ms": 1095})
    )
    shown = text(compare(summary, "measured"))
    assert "measured" in shown
    lines = {line.strip()[:12]: line.split() for line in shown.splitlines()}
    assert lines["Requests per"][3:] == ["52.42", "(50.55", "to", "54.28)", "18.00", "0.34"]
    assert lines["KV cache in "][4:] == ["56.7%", "(55.5%", "to", "57.9%)", "-", "-"]
    assert lines["Mean time in"][-2:] == ["1,095", "0.50"]
    assert " used to fit" in " ".join(shown.split())


def test_comparison_shows_a_second_run(make_run: MakeRun) -> None:
    shown = text(compare(summarize(make_run(workload="kubeai-threads-1200", strategy="Random"))))
    assert "not used to fit" in " ".join(shown.split())
    assert "second run" in shown
    assert "31,625       36,866" in shown


def test_no_comparison_without_a_publication(make_run: MakeRun) -> None:
    assert compare(summarize(make_run())) is None
    assert compare(summarize(make_run(workload="lora-4", strategy="PrefixHash"))) is None
