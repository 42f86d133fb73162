from __future__ import annotations

from extproc.core.fleet.report import Load, PrefillTotals, Report, StepTotals
from tests.adapters.vllm.exposition.texts import read
from tests.adapters.vllm.expositions import BASE, CACHE, ENGINES, LORA, OLD


class TestRealExposition:
    def test_has_waiting_and_running_requests_and_cache_usage(self) -> None:
        report = read(BASE)
        assert (report.load, report.running) == (Load(2.0, 0.125), 3.0)
        assert (report.max_loras, report.block_size) == (None, None)

    def test_has_prompt_tokens_and_cached_tokens(self) -> None:
        report = read(BASE)
        assert (report.prompt_tokens, report.cached_tokens) == (1206.0, 768.0)

    def test_adds_the_cached_tokens_that_a_connector_loaded_from_outside_the_gpu(self) -> None:
        external = "vllm:external_prefix_cache_hits_total{engine="
        assert read(BASE + f'{external}"0"}} 100.0\n').cached_tokens == 868.0

    def test_has_number_and_time_of_first_tokens(self) -> None:
        assert (read(BASE).first_tokens, read(BASE).first_token_seconds) == (3.0, 0.0625)

    def test_has_the_prompt_tokens_of_requests_with_first_tokens(self) -> None:
        assert read(BASE).responded_tokens == 900.0
        assert read(ENGINES).responded_tokens is None

    def test_has_steps_with_their_computed_tokens_and_times(self) -> None:
        assert read(BASE).steps == StepTotals(steps=17, computed=438, seconds=1.5, times=39)

    def test_has_no_steps_if_a_counter_is_missing(self) -> None:
        assert read(BASE.replace("iteration_tokens_total_sum", "other")).steps is None
        assert read(BASE.replace("latency_seconds_count", "other")).steps is None

    def test_has_no_steps_if_engines_share_the_port(self) -> None:
        other = 'vllm:iteration_tokens_total_count{engine="1",model_name="base"} 5.0\n'
        assert read(BASE + other).steps is None

    def test_has_the_prompts_of_finished_requests(self) -> None:
        assert read(BASE).prefills == PrefillTotals(prompts=2, seconds=0.375, tokens=374)

    def test_has_no_prompts_if_a_counter_is_missing(self) -> None:
        assert read(BASE.replace("kv_computed_tokens_sum", "other")).prefills is None

    def test_adds_the_prompts_of_engines_that_share_the_port(self) -> None:
        both = BASE + BASE.replace('engine="0"', 'engine="1"')
        assert read(both).prefills == PrefillTotals(prompts=4, seconds=0.75, tokens=748)

    def test_has_adapters_in_use_and_slots(self) -> None:
        report = read(BASE + LORA)
        assert report.max_loras == 2
        assert report.running_adapters == {"c", "d"}
        assert report.waiting_adapters == {"d"}

    def test_has_size_of_the_cache(self) -> None:
        report = read(BASE + LORA + CACHE)
        assert (report.block_size, report.blocks, report.kv_tokens) == (32, 512, 16_384)

    def test_of_a_hybrid_model_has_the_tokens_that_fit_and_not_those_of_all_blocks(self) -> None:
        hybrid = CACHE.replace('size_tokens="16384"', 'size_tokens="5120"')
        assert read(BASE + hybrid).cache_tokens == 5120

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
            block_size=32,
            blocks=1024,
            prompt_tokens=1200.0,
            cached_tokens=64.0,
            first_tokens=5.0,
            kv_tokens=32_768,
        )

    def test_of_several_engines_has_the_blocks_that_each_of_them_gives_for_all(self) -> None:
        report = read(ENGINES.replace("kv_cache_size_tokens", "unknown_label"))
        assert (report.kv_tokens, report.cache_tokens) == (None, 32_768)
