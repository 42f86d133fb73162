"""The text of /metrics: names, labels and size as in vLLM."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica, SimRequest
from extproc.lab.stand_ins.lora_gauge import LoraGauge
from extproc.lab.stand_ins.vllm_metrics import MetricsStyle, exposition

LORA = replace(L4_LLAMA_3_1_8B_FP8, max_loras=2)


def samples(text: bytes) -> list[Sample]:
    """Return the samples of a name, read by Prometheus' own parser."""
    families = text_string_to_metric_families(text.decode())
    return [sample for family in families for sample in family.samples]


def named(text: bytes, name: str) -> list[Sample]:
    return [sample for sample in samples(text) if sample.name == name]


class TestNames:
    def test_usage_of_the_cache(self) -> None:
        text = exposition(Replica(), "m")
        assert len(named(text, "vllm:kv_cache_usage_perc")) == 1
        assert not named(text, "vllm:gpu_cache_usage_perc")

    def test_old_name_of_the_cache_usage(self) -> None:
        text = exposition(Replica(), "m", MetricsStyle(old_names=True))
        assert len(named(text, "vllm:gpu_cache_usage_perc")) == 1
        assert not named(text, "vllm:kv_cache_usage_perc")

    def test_a_model_name_is_escaped(self) -> None:
        name = 'a "quoted" \\ name\n'
        for sample in named(exposition(Replica(), name), "vllm:num_requests_running"):
            assert sample.labels["model_name"] == name

    def test_large_numbers_have_an_exponent(self) -> None:
        replica = Replica()
        replica.generation_tokens_total = 1_234_567
        text = exposition(replica, "m")
        assert b'vllm:generation_tokens_total{engine="0",model_name="m"} 1.234567e+06\n' in text


class TestCacheConfig:
    def test_has_the_labels_that_routers_read(self) -> None:
        (info,) = named(exposition(Replica(), "m"), "vllm:cache_config_info")
        assert info.value == 1
        assert info.labels["block_size"] == "16"
        assert info.labels["num_gpu_blocks"] == str(L4_LLAMA_3_1_8B_FP8.kv_blocks)
        assert len(info.labels) == 37

    def test_labels_are_sorted(self) -> None:
        (info,) = named(exposition(Replica(), "m"), "vllm:cache_config_info")
        assert list(info.labels) == sorted(info.labels)


class TestAdapters:
    def test_no_family_without_lora(self) -> None:
        assert b"lora" not in exposition(Replica(), "m")

    def test_family_is_empty_before_the_first_request(self) -> None:
        replica = Replica(LORA)
        text = exposition(replica, "m", gauge=LoraGauge(replica))
        assert b"# TYPE vllm:lora_requests_info gauge\n" in text
        assert not named(text, "vllm:lora_requests_info")

    def test_series_has_labels_and_a_time(self) -> None:
        replica = Replica(LORA)
        gauge = LoraGauge(replica)
        replica.submit(SimRequest(1, 5, 2, [], "a"))
        replica.submit(SimRequest(2, 5, 2, [], "b"))
        replica.begin_step()
        replica.finish_step()
        gauge.stamp(1_795_275_020.5)
        line = (
            b'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",'
            b'waiting_lora_adapters="a,b"} 1.7952750205e+09\n'
        )
        assert line in exposition(replica, "m", gauge=gauge)


class TestPadding:
    @pytest.mark.parametrize("size", [0, 1, 1_000, 50_000])
    def test_has_the_requested_size(self, size: int) -> None:
        plain = exposition(Replica(), "m")
        padded = exposition(Replica(), "m", MetricsStyle(padding=size))
        assert size <= len(padded) - len(plain) < size + 80

    def test_surrounds_the_other_series(self) -> None:
        text = exposition(Replica(), "m", MetricsStyle(padding=50_000))
        before, _, after = text.partition(exposition(Replica(), "m"))
        assert len(before) == pytest.approx(len(after), abs=1_000)

    def test_has_no_duplicate_series(self) -> None:
        text = exposition(Replica(), "m", MetricsStyle(padding=50_000))
        found = [(sample.name, *sorted(sample.labels.items())) for sample in samples(text)]
        assert len(found) == len(set(found)) > 500
