"""The health, models, metrics and load reports of a stand-in server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8
from extproc.lab.engine.replica import Replica, SimRequest
from tests.lab.stand_ins.server import (
    CHAT,
    COMPLETIONS,
    TIME_SCALE,
    Json,
    Server,
    chat,
)


class TestLoadReports:
    """ORCA load reports: a response without streaming has one if a request header asks for it."""

    REPORT = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0"

    def reported(self, server: Server, path: str, body: Json, format_: str = "TEXT") -> str | None:
        asking = {"endpoint-load-metrics-format": format_}
        return server.post(path, body, headers=asking).headers.get("endpoint-load-metrics")

    def test_responses_without_streaming_have_one(self, fast: Server) -> None:
        assert self.reported(fast, CHAT, chat("hello")) == self.REPORT
        assert self.reported(fast, COMPLETIONS, {"prompt": "hello"}) == self.REPORT

    def test_streams_have_none(self, fast: Server) -> None:
        assert self.reported(fast, CHAT, chat("hello", stream=True)) is None
        assert self.reported(fast, COMPLETIONS, {"prompt": "hello", "stream": True}) is None

    def test_errors_have_none(self, fast: Server) -> None:
        assert self.reported(fast, CHAT, {}) is None

    def test_unknown_formats_are_ignored(self, fast: Server) -> None:
        assert self.reported(fast, CHAT, chat("hello"), "BIN") is None


def step_seconds(replica: Replica) -> Iterator[float]:
    """Yield the seconds of each step until all requests are finished."""
    while (seconds := replica.begin_step()) is not None:
        replica.finish_step()
        yield seconds


class TestReadings:
    def test_health(self, fast: Server) -> None:
        answer = fast.get("/health")
        assert (answer.status, answer.body) == (200, b"")

    def test_models(self, slow: Server) -> None:
        models = slow.get("/v1/models").json
        assert models["object"] == "list"
        assert [model["id"] for model in models["data"]] == ["base", "adapter"]
        assert [model["root"] for model in models["data"]] == ["base", "base"]
        assert [model["parent"] for model in models["data"]] == [None, None]

    def test_metrics_have_vllms_names(self, slow: Server) -> None:
        answer = slow.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = answer.body.decode()
        for name in (
            "num_requests_running",
            "num_requests_waiting",
            "kv_cache_usage_perc",
            "num_preemptions_total",
            "prefix_cache_queries_total",
            "prefix_cache_hits_total",
            "prompt_tokens_total",
            "generation_tokens_total",
        ):
            assert f'vllm:{name}{{engine="0",model_name="base"}} ' in text
        assert 'block_size="16"' in text
        assert f'num_gpu_blocks="{L4_LLAMA_3_1_8B_FP8.kv_blocks}"' in text

    def test_metrics_count_tokens(self, fast: Server) -> None:
        fast.reset()
        for _ in range(2):
            fast.post(COMPLETIONS, {"prompt": "tell" * 100, "max_tokens": 5})
        assert fast.metric("prompt_tokens_total") == 200
        assert fast.metric("generation_tokens_total") == 10
        assert fast.metric("prefix_cache_queries_total") == 200
        assert fast.metric("prefix_cache_hits_total") == 96

    def test_metrics_have_the_time_to_first_token(self, fast: Server) -> None:
        fast.reset()
        assert fast.metric("time_to_first_token_seconds_sum") == 0
        fast.post(COMPLETIONS, {"prompt": "tell", "max_tokens": 2})
        assert fast.metric("time_to_first_token_seconds_count") == 1
        assert fast.metric("time_to_first_token_seconds_sum") > 0

    def test_metrics_have_the_steps(self, fast: Server) -> None:
        fast.reset()
        fast.post(COMPLETIONS, {"prompt": "tell" * 100, "max_tokens": 5})
        assert fast.metric("iteration_tokens_total_count") == 5
        assert fast.metric("iteration_tokens_total_sum") == 105
        assert fast.metric("inter_token_latency_seconds_count") == 4

    def test_metrics_have_the_times_of_prompts(self, fast: Server) -> None:
        fast.reset()
        fast.post(COMPLETIONS, {"prompt": "tell" * 100, "max_tokens": 5})
        assert fast.metric("request_prefill_time_seconds_count") == 1
        assert fast.metric("request_prefill_kv_computed_tokens_sum") == 100

    def test_metrics_have_the_profile_s_times_on_a_busy_machine(self, fast: Server) -> None:
        fast.reset()
        fast.post(COMPLETIONS, {"prompt": "tell" * 100, "max_tokens": 5})
        replica = Replica(L4_LLAMA_3_1_8B_FP8)
        replica.submit(SimRequest(1, 100, 5, tuple(range(6))))
        prompt, *later = step_seconds(replica)
        assert fast.metric("request_prefill_time_seconds_sum") == pytest.approx(prompt / TIME_SCALE)
        assert fast.metric("inter_token_latency_seconds_sum") == pytest.approx(
            sum(later) / TIME_SCALE
        )

    def test_requests_of_any_status_count_as_completed(self, fast: Server) -> None:
        fast.reset()
        fast.post(CHAT, chat("hello"))
        fast.post(CHAT, chat("hello", stream=True))
        fast.post(CHAT, b"bad")
        fast.post("/v1/embeddings", {"input": "x"})
        assert fast.requests() == {"in_flight": 0, "total": 4, "aborted": 0, "completed": 4}
