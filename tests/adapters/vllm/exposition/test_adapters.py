from __future__ import annotations

import re

import pytest

from extproc.adapters.vllm.exposition import read_report
from extproc.adapters.vllm.names import MOST_ADAPTERS
from extproc.adapters.vllm.readings import Failure
from extproc.core.schema import MAX_NAME_LENGTH
from tests.adapters.vllm.exposition.texts import exposition, read
from tests.adapters.vllm.expositions import BASE


def adapters(text: str) -> tuple[int | None, set[str], set[str]]:
    report = read(exposition() + text)
    return report.max_loras, set(report.running_adapters), set(report.waiting_adapters)


def lora(labels: str, value: str = "1.0") -> str:
    return f"vllm:lora_requests_info{{{labels}}} {value}\n"


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
