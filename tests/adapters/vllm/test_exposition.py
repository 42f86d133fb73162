from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_letters

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.adapters.vllm.exposition import read_report
from extproc.adapters.vllm.names import MOST_ADAPTERS, usable_adapter_names
from extproc.adapters.vllm.readings import Failure, Result
from extproc.core.fleet.signals import Load, Report
from extproc.core.schema import MAX_NAME_LENGTH
from tests.adapters.vllm.expositions import BASE, CACHE, ENGINES, LORA, OLD, PREAMBLE
from tests.core.builders import brief, thorough

NAMES = {
    "waiting": "vllm:num_requests_waiting",
    "running": "vllm:num_requests_running",
    "usage": "vllm:kv_cache_usage_perc",
}

OLD_USAGE = "vllm:gpu_cache_usage_perc"


def exposition(**values: str) -> str:
    """Return an exposition with these values instead of zeros; "" omits a metric."""
    shown = {name: values.get(name, "0.0") for name in NAMES}
    return "".join(f'{NAMES[n]}{{engine="0"}} {value}\n' for n, value in shown.items() if value)


def read(text: str) -> Report:
    return read_report(text.encode())


def adapters(text: str) -> tuple[int | None, set[str], set[str]]:
    report = read(exposition() + text)
    return report.max_loras, set(report.running_adapters), set(report.waiting_adapters)


def lora(labels: str, value: str = "1.0") -> str:
    return f"vllm:lora_requests_info{{{labels}}} {value}\n"


def refused(text: str) -> str:
    """Return the reason for the failure."""
    with pytest.raises(Failure) as failure:
        read(text)
    assert failure.value.result is Result.GARBLED
    return str(failure.value)


class TestRealExposition:
    def test_has_waiting_and_running_requests_and_cache_usage(self) -> None:
        report = read(BASE)
        assert (report.load, report.running) == (Load(2.0, 0.125), 3.0)
        assert (report.max_loras, report.block_size) == (None, None)

    def test_has_prompt_tokens_and_cached_tokens(self) -> None:
        report = read(BASE)
        assert (report.prompt_tokens, report.cached_tokens) == (1206.0, 768.0)

    def test_has_number_of_first_tokens(self) -> None:
        assert read(BASE).first_tokens == 3.0

    def test_has_adapters_in_use_and_slots(self) -> None:
        report = read(BASE + LORA)
        assert report.max_loras == 2
        assert report.running_adapters == {"c", "d"}
        assert report.waiting_adapters == {"d"}

    def test_has_size_of_the_cache(self) -> None:
        report = read(BASE + LORA + CACHE)
        assert (report.block_size, report.blocks) == (32, 512)

    def test_of_an_old_release_has_the_same_under_old_names(self) -> None:
        report = read(OLD)
        assert (report.load, report.running) == (Load(0.0, 0.0003), 1.0)
        assert (report.block_size, report.blocks) == (16, 27862)
        assert report.max_loras == 4
        assert report.running_adapters == {"sql", "law"}
        assert report.waiting_adapters == {"med"}
        assert (report.prompt_tokens, report.cached_tokens) == (None, None)

    def test_of_several_engines_has_sums_and_mean_cache_usage(self) -> None:
        assert read(ENGINES) == Report(
            Load(2.0, 0.375),
            4.0,
            block_size=16,
            blocks=220,
            prompt_tokens=1200.0,
            cached_tokens=64.0,
            first_tokens=5.0,
        )


class TestNumber:
    @pytest.mark.parametrize("missing", NAMES)
    def test_missing_one_is_a_failure(self, missing: str) -> None:
        shown = OLD_USAGE if missing == "usage" else NAMES[missing]
        assert refused(exposition(**{missing: ""})) == f"{shown} is missing"

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1.0", "", "many", "1,5", "0x1"])
    def test_malformed_one_is_a_failure(self, name: str, value: str) -> None:
        assert NAMES[name] in refused(exposition(**{name: f" {value}"}))

    def test_can_have_any_notation_of_the_format(self) -> None:
        text = exposition(waiting="1.2e+01", running="  7", usage="5e-1 1795275033697")
        assert read(text) == Report(Load(12.0, 0.5), 7.0)

    def test_needs_no_labels(self) -> None:
        text = "".join(f"{name} {i / 2}\n" for i, name in enumerate(NAMES.values()))
        assert read(text) == Report(Load(0.0, 1.0), 0.5)

    def test_is_not_read_from_a_label(self) -> None:
        labels = 'a="} 9.0",b="\\"} 8.0",engine="0"'
        text = "".join(f"{name}{{{labels}}} 1.0\n" for name in NAMES.values())
        assert read(text) == Report(Load(1.0, 1.0), 1.0)

    def test_too_long_one_is_a_failure(self) -> None:
        assert "waiting" in refused(exposition(waiting="1" * 100_000))

    def test_is_not_read_from_a_comment_or_within_a_line(self) -> None:
        text = f"# {NAMES['waiting']} 5.0\n x{NAMES['waiting']} 5.0\n #\t{NAMES['waiting']} 5.0\n"
        assert "is missing" in refused(text + exposition(waiting=""))

    @pytest.mark.parametrize("sibling", ["_by_reason", "_total", "s", "_", ":x", "2"])
    def test_is_not_read_from_a_metric_with_a_longer_name(self, sibling: str) -> None:
        siblings = "".join(f'{name}{sibling}{{engine="0"}} 9.0\n' for name in NAMES.values())
        assert read(siblings + exposition(waiting="1.0") + siblings) == Report(Load(1.0, 0.0), 0.0)
        assert "is missing" in refused(siblings)

    def test_can_be_anywhere_in_the_text(self) -> None:
        assert read(exposition() + PREAMBLE + exposition(waiting="1.0", usage="1.0")).load == Load(
            1.0, 0.5
        )

    def test_is_not_read_from_a_cut_line(self) -> None:
        assert refused(exposition(usage="0.25")[:-2]) == "the exposition is cut off"

    def test_number_of_series_is_limited(self) -> None:
        assert "more than 1000 series" in refused(exposition() * 1001)
        assert "more than 1000 series" in refused(
            exposition() + f"{NAMES['running']}_x 1.0\n" * 1001
        )


COUNTERS = {
    "prompt_tokens": "vllm:prefix_cache_queries_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
}


@pytest.mark.parametrize("counter", COUNTERS)
class TestCounter:
    def total(self, counter: str, *values: str) -> float | None:
        """Return the total for engines with these values."""
        rows = enumerate(values)
        text = "".join(f'{COUNTERS[counter]}{{engine="{i}"}} {value}\n' for i, value in rows)
        report = read(exposition() + text)
        assert report.load == Load(0.0, 0.0)
        others = {getattr(report, name) for name in COUNTERS if name != counter}
        assert others == {None}
        total = getattr(report, counter)
        assert total is None or isinstance(total, float)
        return total

    def test_is_the_sum_over_all_engines(self, counter: str) -> None:
        assert self.total(counter, "5.0") == 5
        assert self.total(counter, "0.0", "1.5e+09") == 1.5e9

    def test_missing_one_is_none(self, counter: str) -> None:
        assert self.total(counter) is None

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1.0", "", "many", "9" * 400])
    def test_malformed_one_is_none(self, counter: str, value: str) -> None:
        assert self.total(counter, value) is None
        assert self.total(counter, "5.0", value) is None
        assert self.total(counter, value, "5.0") is None

    def test_infinite_one_is_none(self, counter: str) -> None:
        assert self.total(counter, "1e308", "1e308") is None

    def test_is_not_read_from_a_metric_with_a_longer_name(self, counter: str) -> None:
        text = f"{COUNTERS[counter]}_x 5.0\n{COUNTERS[counter]}s 5.0\n# {COUNTERS[counter]} 5.0\n"
        assert getattr(read(exposition() + text), counter) is None


class TestCacheUsage:
    def test_new_name_has_priority(self) -> None:
        old = f"{OLD_USAGE} 0.75\n"
        assert read(old + exposition(usage="0.5")).load.kv_usage == 0.5
        assert read(old + exposition(usage="")).load.kv_usage == 0.75


class TestAdapters:
    def test_are_off_without_their_metric(self) -> None:
        assert adapters("") == (None, set(), set())

    def test_come_from_the_series_with_the_largest_value(self) -> None:
        series = [
            (lora('max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""', "1.7e+09")),
            (lora('max_lora="3",running_lora_adapters="new",waiting_lora_adapters=""', "1.8e+09")),
        ]
        assert adapters("".join(series)) == adapters("".join(series[::-1])) == (3, {"new"}, set())

    def test_labels_can_have_any_order(self) -> None:
        text = lora(
            'waiting_lora_adapters="b" , engine="0", max_lora="1",running_lora_adapters="a"'
        )
        assert adapters(text) == (1, {"a"}, {"b"})

    def test_names_can_have_escapes(self) -> None:
        text = lora(
            r'running_lora_adapters="say \"hi\",C:\\a,two\nlines, b ",waiting_lora_adapters="é"'
        )
        assert adapters(text) == (None, {'say "hi"', "C:\\a", "b"}, {"é"})

    def test_are_not_read_from_a_label_that_looks_like_another(self) -> None:
        text = lora('x="y,running_lora_adapters=",not_running_lora_adapters="b",max_lora="2"')
        assert adapters(text) == (2, set(), set())

    @pytest.mark.parametrize("value", ["NaN", "soon", ""])
    def test_are_unknown_if_the_time_is_not_a_number(self, value: str) -> None:
        assert adapters(lora('running_lora_adapters="a"', value)) == (None, set(), set())

    @pytest.mark.parametrize("labels", ["", "x", 'running_lora_adapters="a', "max_lora=2", ',="'])
    def test_are_unknown_if_labels_are_malformed(self, labels: str) -> None:
        assert adapters(lora(labels)) == (None, set(), set())

    @pytest.mark.parametrize("number", ["None", "-1", "0", "2.5", "", "9" * 100])
    def test_slots_must_be_a_number(self, number: str) -> None:
        assert adapters(lora(f'max_lora="{number}"'))[0] is None

    def test_number_and_length_are_limited(self) -> None:
        many = ",".join(f"adapter-{i}" for i in range(5 * MOST_ADAPTERS))
        long = "x" * (MAX_NAME_LENGTH + 1)
        text = f'running_lora_adapters="{many}",waiting_lora_adapters="{long},{long[1:]},,short"'
        _, running, waiting = adapters(lora(text))
        assert len(running) == MOST_ADAPTERS
        assert waiting == {long[1:], "short"}

    def test_only_a_limited_number_of_sets_is_read(self) -> None:
        labels = 'max_lora="4",running_lora_adapters='
        sets = "".join(lora(f'{labels}"a{i}"', f"{i}.0") for i in range(10_100))
        assert adapters(sets) == (4, {"a9999"}, set())

    def test_after_a_hundred_labels_are_ignored(self) -> None:
        labels = 'x="y",' * 100 + 'running_lora_adapters="a"'
        assert adapters(lora(labels))[1] == set()

    @pytest.mark.parametrize("names", ["a" * 70_000, r"\\" * 4_000])
    def test_implausible_names_are_ignored(self, names: str) -> None:
        labels = f'x="y",waiting_lora_adapters="w",running_lora_adapters="{names}"'
        assert adapters(lora(labels))[1] == set()


@pytest.mark.parametrize(
    "changed", ["kv_cache_usage_perc 100", "num_requests_waiting 1e308", "num_requests_running 1e7"]
)
def test_impossible_values_are_a_failure(changed: str) -> None:
    name, value = changed.split()
    text = re.sub(rf"(vllm:{name}{{[^}}]*}}) \S+", rf"\1 {value}", BASE)
    assert text != BASE
    with pytest.raises(Failure, match="higher than any endpoint can have"):
        read_report(text.encode())


class TestCache:
    @pytest.mark.parametrize(
        ("labels", "block_size", "blocks"),
        [
            ('block_size="None",num_gpu_blocks="None",num_gpu_blocks_override="None"', None, None),
            ('block_size="16",num_gpu_blocks="None",num_gpu_blocks_override="300"', 16, 300),
            ('num_gpu_blocks="200",num_gpu_blocks_override="300",block_size="0"', None, 200),
            ('block_size="16', None, None),
            ("", None, None),
        ],
    )
    def test_description_can_be_partial(
        self, labels: str, block_size: int | None, blocks: int | None
    ) -> None:
        report = read(exposition() + f"vllm:cache_config_info{{{labels}}} 1.0\n")
        assert (report.block_size, report.blocks) == (block_size, blocks)

    def test_of_reconfigured_engine_counts_once(self) -> None:
        of = 'vllm:cache_config_info{{engine="0",num_gpu_blocks="{}"}} 1.0\n'
        assert read(exposition() + of.format(0) + of.format(5) + of.format(7)).blocks == 7

    def test_description_can_have_any_length(self) -> None:
        text = f'vllm:cache_config_info{{x="{"y" * 100_000}",block_size="16"}} 1.0\n'
        assert read(exposition() + text).block_size is None


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


labels = st.dictionaries(
    st.text(ascii_letters, min_size=1, max_size=4), st.text(max_size=8), max_size=3
)
# Tests compare exactly: numbers whose sums and means are exact in any order.
series = st.lists(st.tuples(labels, st.integers(0, 2**18)), max_size=3)
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
