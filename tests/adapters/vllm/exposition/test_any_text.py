from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.adapters.vllm.exposition import read_report
from extproc.adapters.vllm.names import usable_adapter_names
from extproc.adapters.vllm.readings import Failure
from extproc.core.fleet.report import Load
from tests.adapters.vllm.exposition.texts import COUNTERS, NAMES, exposition, labels, read, series
from tests.core.builders import brief, thorough


@thorough
@given(st.binary())
def test_any_bytes_are_a_report_or_a_failure(text: bytes) -> None:
    with pytest.raises(Failure):
        read_report(text)


LINE_PARTS = [
    *(
        *NAMES.values(),
        *COUNTERS.values(),
        "vllm:lora_requests_info",
        "vllm:cache_config_info",
        "_total",
        "# TYPE ",
    ),
    *('{engine="0"', "{", "}", '"', "\\", ",", "=", " ", "\n", " 1.0\n", "} 2.0\n", "} NaN\n"),
    *('max_lora="', 'running_lora_adapters="', 'num_gpu_blocks="', "é", "\0", "9" * 400),
]


@thorough
@given(st.lists(st.sampled_from(LINE_PARTS), max_size=40).map("".join))
def test_damaged_exposition_is_a_report_or_a_failure(text: str) -> None:
    try:
        report = read(exposition() + text + "\n")
    except Failure:
        return
    assert report.load.waiting >= 0
    assert report.load.kv_usage >= 0
    assert report.running >= 0
    for counter in COUNTERS:
        assert getattr(report, counter) is None or getattr(report, counter) >= 0


shares = st.lists(st.tuples(labels, st.integers(0, 1)), max_size=3)


def gauge(
    registry: CollectorRegistry, name: str, rows: Sequence[tuple[Mapping[str, str], int]]
) -> None:
    names = sorted({label for row, _ in rows for label in row})
    made = Gauge(name, "Some text.", names, registry=registry)
    for row, value in rows:
        child = made.labels(*(row.get(label, "") for label in names)) if names else made
        child.set(value)


def names_in(joined: str) -> frozenset[str]:
    return usable_adapter_names(map(str.strip, joined.split(",")))


@brief
@given(waiting=series, running=series, usage=shares, others=series, named=series)
def test_agrees_with_the_prometheus_library(
    waiting: list[tuple[Mapping[str, str], int]],
    running: list[tuple[Mapping[str, str], int]],
    usage: list[tuple[Mapping[str, str], int]],
    others: list[tuple[Mapping[str, str], int]],
    named: list[tuple[Mapping[str, str], int]],
) -> None:
    registry = CollectorRegistry()
    gauge(registry, NAMES["waiting"], waiting)
    gauge(registry, f"{NAMES['waiting']}_by_reason", others)
    gauge(registry, NAMES["running"], running)
    gauge(registry, NAMES["usage"], usage)
    joined = [({"running_lora_adapters": ",".join(row.values())}, value) for row, value in named]
    gauge(registry, "vllm:lora_requests_info", joined)
    text = generate_latest(registry)
    samples = [
        sample
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    ]

    def values(name: str) -> list[float]:
        return [sample.value for sample in samples if sample.name == name]

    expected = {key: values(name) for key, name in NAMES.items()}
    if not all(expected.values()):
        with pytest.raises(Failure):
            read_report(text)
        return
    report = read_report(text)
    mean = sum(expected["usage"]) / len(expected["usage"])
    assert report.load == Load(sum(expected["waiting"]), mean)
    assert report.running == sum(expected["running"])
    infos = [sample for sample in samples if sample.name == "vllm:lora_requests_info"]
    if infos:
        newest = max(sample.value for sample in infos)
        lists = [s.labels.get("running_lora_adapters", "") for s in infos if s.value == newest]
        assert report.running_adapters in [names_in(one) for one in lists]
