"""The stand-in server as a process, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8
from extproc.lab.stand_ins.arguments import parse
from tests.lab.stand_ins.server import CompletionResponse, Json, Server, ask, encoded, run, stand_in

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG_WORDS = "the quick brown fox jumps over the lazy dog, again and again; " * 20


@pytest.fixture(scope="module")
def fast() -> Iterator[Server]:
    """Two replicas, fifty times faster than real time."""
    with stand_in("--ports", "0,0", "--time-scale", "50") as server:
        yield server


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """One replica in real time, with a model name and a batch of two requests."""
    with stand_in("--ports", "0", "--model", "base,adapter", "--max-num-seqs", "2") as server:
        yield server


@pytest.fixture(scope="module")
def lora() -> Iterator[Server]:
    """Two replicas with LoRA and two adapters, fifty times faster than real time."""
    command = ["--ports", "0,0", "--time-scale", "50", "--adapters", "a,b"]
    with stand_in(*command, "--max-loras", "2", "--max-cpu-loras", "4") as server:
        yield server


def chat(*contents: str, **changes: Any) -> Json:
    """Return a chat request; the messages alternate, and the user's is first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"model": "m", "messages": messages, **changes}


def answer_of(answer: CompletionResponse) -> str:
    text: str = answer.json["choices"][0]["message"]["content"]
    return text


def cached_tokens(answer: CompletionResponse) -> int:
    cached: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


class TestResponse:
    def test_a_chat(self, fast: Server) -> None:
        answer = fast.post(CHAT, chat("hello", max_tokens=5))
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.json["object"] == "chat.completion"
        assert answer.json["model"] == "m"
        choice = answer.json["choices"][0]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["role"] == "assistant"
        assert len(choice["message"]["content"]) == 5 * 4

    def test_a_completion(self, fast: Server) -> None:
        answer = fast.post(COMPLETIONS, {"model": "m", "prompt": "hello", "max_tokens": 5})
        assert answer.json["object"] == "text_completion"
        assert len(answer.json["choices"][0]["text"]) == 5 * 4

    def test_usage_adds_up(self, fast: Server) -> None:
        prompt = {"prompt": "four" * 10, "max_tokens": 7}
        usage = fast.post(COMPLETIONS, prompt).json["usage"]
        assert usage == {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    @pytest.mark.parametrize(
        ("limits", "length"),
        [({}, 16), ({"max_tokens": 3}, 3), ({"max_completion_tokens": 2, "max_tokens": 9}, 2)],
    )
    def test_length_is_the_requested_one(
        self, fast: Server, limits: dict[str, int], length: int
    ) -> None:
        answer = fast.post(CHAT, chat("hello", **limits))
        assert answer.json["usage"]["completion_tokens"] == length

    def test_equal_prompts_have_equal_outputs_on_all_replicas(self, fast: Server) -> None:
        first, second = (fast.post(CHAT, chat("hello"), replica) for replica in (0, 1))
        assert answer_of(first) == answer_of(second)

    def test_text_parts_are_joined(self, fast: Server) -> None:
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        body = {"messages": [{"role": "user", "content": parts}]}
        assert answer_of(fast.post(CHAT, body)) == answer_of(fast.post(CHAT, chat("hello")))

    def test_different_images_are_different_prompts(self, fast: Server) -> None:
        def answer(url: str) -> str:
            image = {"type": "image_url", "image_url": {"url": url}}
            parts = [image, {"type": "text", "text": "What is this?"}]
            return answer_of(fast.post(CHAT, {"messages": [{"role": "user", "content": parts}]}))

        assert answer("data:,a") == answer("data:,a")
        assert answer("data:,a") != answer("data:,b")

    def test_each_prompt_of_a_completion_has_a_choice(self, fast: Server) -> None:
        prompts = {"prompt": ["one", "two"], "max_tokens": 3}
        choices = fast.post(COMPLETIONS, prompts).json["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        for prompt, choice in zip(("one", "two"), choices, strict=True):
            alone = fast.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 3})
            assert choice["text"] == alone.json["choices"][0]["text"]

    @pytest.mark.parametrize(
        ("prompt", "length"),
        [("four" * 3, 3), (["four" * 3, "other"], 5), ([1, 2, 3, 4], 4), ([[1, 2], [3]], 3)],
    )
    def test_accepts_four_forms_of_prompts(self, fast: Server, prompt: object, length: int) -> None:
        answer = fast.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
        assert answer.json["usage"]["prompt_tokens"] == length


class TestStreams:
    def test_chat_has_a_role_and_a_chunk_for_each_token(self, fast: Server) -> None:
        answer = fast.post(CHAT, chat("hello", stream=True, max_tokens=4))
        assert answer.headers["content-type"].startswith("text/event-stream")
        choices = [chunk["choices"][0] for chunk in answer.chunks]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [len(choice["delta"]["content"]) for choice in choices[1:]] == [4, 4, 4, 4]
        assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]

    def test_completion_has_a_chunk_for_each_token(self, fast: Server) -> None:
        answer = fast.post(COMPLETIONS, {"prompt": "hello", "stream": True, "max_tokens": 3})
        choices = [chunk["choices"][0] for chunk in answer.chunks]
        assert [len(choice["text"]) for choice in choices] == [4, 4, 4]
        assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]

    def test_choices_of_a_completion_are_sent_in_order(self, fast: Server) -> None:
        prompts = {"prompt": ["one", "two"], "stream": True, "max_tokens": 2}
        choices = [chunk["choices"][0] for chunk in fast.post(COMPLETIONS, prompts).chunks]
        assert [choice["index"] for choice in choices] == [0, 0, 1, 1]
        ends = [None, "length", None, "length"]
        assert [choice["finish_reason"] for choice in choices] == ends

    def test_all_chunks_have_the_same_id(self, fast: Server) -> None:
        chunks = fast.post(CHAT, chat("hello", stream=True)).chunks
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert {chunk["model"] for chunk in chunks} == {"m"}

    def test_stream_has_the_text_of_the_response_without_streaming(self, fast: Server) -> None:
        chunks = fast.post(CHAT, chat("hello", stream=True)).chunks
        text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        assert text == answer_of(fast.post(CHAT, chat("hello")))

    def test_usage_is_last_if_requested(self, fast: Server) -> None:
        body = chat("usage?", stream=True, max_tokens=4, stream_options={"include_usage": True})
        chunks = fast.post(CHAT, body).chunks
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 4
        assert not any("usage" in chunk for chunk in chunks[:-1])

    def test_usage_is_omitted_by_default(self, fast: Server) -> None:
        chunks = fast.post(CHAT, chat("hello", stream=True)).chunks
        assert not any("usage" in chunk for chunk in chunks)

    def test_response_repeats_the_model_name(self, fast: Server) -> None:
        name = 'a "quoted" \\ name\n\ud800é'
        chunks = fast.post(CHAT, chat("hello", stream=True, model=name)).chunks
        assert chunks[0]["model"] == name

    def test_headers_are_sent_before_the_first_token(self, slow: Server) -> None:
        async def timed() -> tuple[float, float]:
            body = chat(LONG_WORDS * 20, stream=True, max_tokens=1, model="base")
            start = time.perf_counter()
            async with (
                aiohttp.ClientSession() as session,
                session.post(slow.url(CHAT), json=body) as response,
            ):
                headers = time.perf_counter() - start
                await response.content.readany()
                return headers, time.perf_counter() - start

        headers, first = run(timed())
        # 6,200 tokens at 4,300 per second.
        assert headers < 0.7 < 1.4 < first

    def test_tokens_are_sent_one_by_one(self, slow: Server) -> None:
        async def arrivals() -> list[float]:
            body = chat("hello", stream=True, max_tokens=8, model="base")
            async with (
                aiohttp.ClientSession() as session,
                session.post(slow.url(CHAT), json=body) as response,
            ):
                return [time.perf_counter() async for _ in response.content.iter_any()]

        times = run(arrivals())
        assert len(times) >= 6
        # Seven steps of 41 ms lie between the first token and the last.
        assert 0.2 < times[-1] - times[0] < 2.0


class TestPrefixCache:
    def test_second_turn_finds_prompt_and_output(self, fast: Server) -> None:
        fast.reset()
        first = fast.post(CHAT, chat(LONG_WORDS, max_tokens=64))
        second = fast.post(CHAT, chat(LONG_WORDS, answer_of(first), "And then?", max_tokens=8))
        assert cached_tokens(first) == 0
        total = first.json["usage"]["total_tokens"]
        # The computed tokens in whole blocks; the last output token is never computed.
        assert cached_tokens(second) == (total - 1) // 16 * 16

    def test_equal_prompt_computes_its_last_block_again(self, fast: Server) -> None:
        body = {"prompt": "same" * 64, "max_tokens": 1}
        assert cached_tokens(fast.post(COMPLETIONS, body)) == 0
        assert cached_tokens(fast.post(COMPLETIONS, body)) == 48

    def test_each_replica_has_its_own_cache(self, fast: Server) -> None:
        body = chat("each port: " + LONG_WORDS)
        fast.post(CHAT, body, replica=0)
        assert cached_tokens(fast.post(CHAT, body, replica=1)) == 0
        assert cached_tokens(fast.post(CHAT, body, replica=1)) > 0

    def test_a_cache_salt_separates_caches(self, fast: Server) -> None:
        body = chat("salt: " + LONG_WORDS)
        for salt in ("a", "b"):
            assert cached_tokens(fast.post(CHAT, {**body, "cache_salt": salt})) == 0
        assert cached_tokens(fast.post(CHAT, {**body, "cache_salt": "a"})) > 0

    def test_reset_empties_the_cache_and_the_counters(self, fast: Server) -> None:
        body = chat("reset: " + LONG_WORDS)
        fast.post(CHAT, body)
        fast.reset()
        assert fast.metric("prefix_cache_queries_total") == 0
        assert fast.requests() == {"in_flight": 0, "total": 0, "aborted": 0, "completed": 0}
        assert cached_tokens(fast.post(CHAT, body)) == 0


class TestErrors:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b"[" * 100_000,
            b"{}",
            b'{"messages": []}',
            b'{"messages": ["hello"]}',
            b'{"messages": [{"content": "no role"}]}',
            b'{"messages": [{"role": "user", "content": 7}]}',
            b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}',
            b'{"cache_salt": "", "messages": [{"role": "user", "content": "x"}]}',
            b'{"max_tokens": 0, "messages": [{"role": "user", "content": "x"}]}',
            b'{"max_tokens": true, "messages": [{"role": "user", "content": "x"}]}',
            b'{"max_tokens": 1000000000000, "messages": [{"role": "user", "content": "x"}]}',
        ],
    )
    def test_a_bad_chat_is_400_in_openai_s_shape(self, fast: Server, body: bytes) -> None:
        answer = fast.post(CHAT, body)
        assert answer.status == 400
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        assert answer.json["error"]["code"] == 400

    @pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], [1, "x"], 7, {}])
    def test_a_bad_completion_is_400(self, fast: Server, prompt: object) -> None:
        assert fast.post(COMPLETIONS, {"prompt": prompt}).status == 400

    def test_a_prompt_beyond_the_context_length_is_400(self, fast: Server) -> None:
        answer = fast.post(COMPLETIONS, {"prompt": "four" * 16_380, "max_tokens": 5})
        assert answer.status == 400
        assert "maximum context length is 16384" in answer.json["error"]["message"]

    def test_request_larger_than_the_cache_is_400(self) -> None:
        with stand_in("--ports", "0", "--kv-tokens", "160") as tiny:
            body = {"prompt": "four" * 150, "max_tokens": 11}
            answer = tiny.post(COMPLETIONS, body)
            assert answer.status == 400
            assert "whole cache holds 160" in answer.json["error"]["message"]

    def test_an_unknown_model_is_404(self, slow: Server) -> None:
        answer = slow.post(CHAT, chat("hello", model="nobody"))
        assert answer.status == 404
        assert "`nobody`" in answer.json["error"]["message"]
        assert answer.json["error"]["param"] == "model"

    @pytest.mark.parametrize("model", ["base", "adapter", None])
    def test_served_names_and_a_missing_name_are_accepted(
        self, slow: Server, model: str | None
    ) -> None:
        assert slow.post(CHAT, chat("hello", model=model, max_tokens=1)).status == 200

    def test_the_wrong_method_is_405(self, fast: Server) -> None:
        assert fast.get(CHAT).status == 405


class TestAborts:
    """The engine aborts a request whose client disconnects."""

    def left_behind(self, server: Server, body: Json, seconds: float) -> None:
        """Send a request and disconnect after some seconds."""

        async def leave() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask("POST", server.url(CHAT), encoded(body)), seconds)

        run(leave())

    def wait_until_idle(self, server: Server) -> None:
        deadline = time.monotonic() + 0.5
        while server.requests()["in_flight"] or server.metric("num_requests_running"):
            assert time.monotonic() < deadline, "the abort was not seen within half a second"
            time.sleep(0.02)

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_running_request_is_aborted(self, slow: Server, stream: bool) -> None:
        slow.reset()
        body = chat("hello", model="base", max_tokens=1_000, stream=stream)
        self.left_behind(slow, body, 0.3)
        self.wait_until_idle(slow)
        assert slow.requests() == {"in_flight": 0, "total": 1, "aborted": 1, "completed": 0}
        assert 0 < slow.metric("generation_tokens_total") < 100
        assert slow.metric("kv_cache_usage_perc") == 0

    def test_a_request_in_the_queue_is_aborted(self, slow: Server) -> None:
        slow.reset()

        async def crowd() -> None:
            body = encoded(chat("hello", model="base", max_tokens=1_000, stream=True))
            asking = [asyncio.create_task(ask("POST", slow.url(CHAT), body)) for _ in range(3)]
            await asyncio.sleep(0.3)
            load = await ask("GET", slow.url("/load"))
            metrics = (await ask("GET", slow.url("/metrics"))).body.decode()
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            assert load.json == {"server_load": 3}
            own = '{engine="0",model_name="base"}'
            assert f"vllm:num_requests_running{own} 2.0" in metrics
            assert f"vllm:num_requests_waiting{own} 1.0" in metrics

        run(crowd())
        self.wait_until_idle(slow)
        assert slow.metric("num_requests_waiting") == 0
        assert slow.requests()["aborted"] == 3

    def test_a_request_with_an_incomplete_body_is_aborted(self, fast: Server) -> None:
        async def begin() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", fast.ports[1])
            writer.write(b"POST /v1/rerank HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
            await writer.drain()
            await asyncio.sleep(0.1)
            held = await ask("GET", fast.url("/stand-in/requests", 1))
            writer.close()
            assert held.json["in_flight"] == 1

        fast.reset(1)
        run(begin())
        deadline = time.monotonic() + 0.5
        while fast.requests(1)["in_flight"]:
            assert time.monotonic() < deadline
        assert fast.requests(1) == {"in_flight": 0, "total": 1, "aborted": 1, "completed": 0}


class TestAdapters:
    def adapters(self, server: Server) -> list[str]:
        """Return the models that /v1/models lists."""
        models = server.get("/v1/models").json["data"]
        return [model["id"] for model in models if model["parent"] is not None]

    def load(self, server: Server, name: str, **more: object) -> CompletionResponse:
        body = {"lora_name": name, "lora_path": f"/{name}", **more}
        return server.post("/v1/load_lora_adapter", body)

    def unload(self, server: Server, name: str) -> CompletionResponse:
        return server.post("/v1/unload_lora_adapter", {"lora_name": name})

    def test_response_has_the_name_of_the_adapter(self, lora: Server) -> None:
        assert lora.post(CHAT, chat("hello", model="a")).json["model"] == "a"

    def test_other_names_mean_an_unnamed_base_model(self, lora: Server) -> None:
        assert lora.post(CHAT, chat("hello", model="whatever")).status == 200

    def test_other_names_are_unknown_if_the_base_model_has_names(self) -> None:
        arguments = ["--model", "base", "--adapters", "a", "--max-loras", "1"]
        with stand_in("--ports", "0", "--time-scale", "50", *arguments) as server:
            statuses = [
                server.post(CHAT, chat("hello", model=model)).status
                for model in ("base", "a", None, "whatever")
            ]
            assert statuses == [200, 200, 200, 404]
            # The default is never an adapter.
            assert b'model_name="base"' in server.get("/metrics").body

    def test_each_adapter_has_its_own_prefix_cache(self, lora: Server) -> None:
        lora.reset()
        asked = [("m", 0), ("a", 0), ("b", 0), ("a", 1), ("m", 1), ("other name of m", 1)]
        for model, found in asked:
            answer = lora.post(CHAT, chat(LONG_WORDS, model=model, max_tokens=1))
            assert (cached_tokens(answer) > 0) == found

    def test_models_name_the_parent_of_an_adapter(self, lora: Server) -> None:
        base, a, _ = lora.get("/v1/models").json["data"]
        assert (base["id"], base["root"], base["parent"]) == ("stand-in", "stand-in", None)
        assert (a["id"], a["root"], a["parent"]) == ("a", "/adapters/a", "stand-in")
        assert (base["max_model_len"], a["max_model_len"]) == (16384, None)

    def test_initial_adapters_are_loaded(self) -> None:
        arguments = ["--adapters", "a,b", "--max-loras", "2", "--lora-load-seconds", "1000"]
        with stand_in("--ports", "0", *arguments) as server:
            assert server.post(CHAT, chat("hello", model="a", max_tokens=1)).status == 200

    def test_loads_and_unloads_an_adapter(self, lora: Server) -> None:
        answer = self.load(lora, "new")
        assert answer.status == 200
        assert answer.body == b"Success: LoRA adapter 'new' added successfully."
        assert self.adapters(lora) == ["a", "b", "new"]
        assert lora.post(CHAT, chat("hello", model="new")).status == 200
        answer = self.unload(lora, "new")
        assert answer.status == 200
        assert answer.body == b"Success: LoRA adapter 'new' removed successfully."
        assert self.adapters(lora) == ["a", "b"]

    def test_each_replica_has_its_own_adapters(self, lora: Server) -> None:
        self.load(lora, "own")
        ids = [model["id"] for model in lora.get("/v1/models", replica=1).json["data"]]
        self.unload(lora, "own")
        assert ids == ["stand-in", "a", "b"]

    def test_loading_takes_time(self) -> None:
        arguments = ["--max-loras", "1", "--lora-load-seconds", "10"]
        with stand_in("--ports", "0", "--time-scale", "50", *arguments) as server:
            start = time.perf_counter()
            self.load(server, "a")
            assert 0.2 < time.perf_counter() - start < 5

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            (b"", None),
            (b"[]", None),
            (b"[" * 100_000, None),
            (b"{}", "body.lora_name"),
            (b'{"lora_name": 7, "lora_path": "/x"}', "body.lora_name"),
            (b'{"lora_name": "x"}', "body.lora_path"),
            (b'{"lora_name": "", "lora_path": "/x"}', None),
        ],
    )
    def test_invalid_load_request_is_400(
        self, lora: Server, body: bytes, param: str | None
    ) -> None:
        answer = lora.post("/v1/load_lora_adapter", body)
        assert answer.status == answer.json["error"]["code"] == 400
        assert answer.json["error"]["param"] == param

    def test_second_load_needs_load_inplace(self, lora: Server) -> None:
        answer = self.load(lora, "a")
        assert answer.status == 400
        assert answer.json["error"]["type"] == "InvalidUserInput"
        assert answer.json["error"]["message"].startswith(
            "The lora adapter 'a' has already been loaded."
        )
        assert self.load(lora, "a", load_inplace=True).status == 200

    def test_unloading_an_unknown_adapter_is_404(self, lora: Server) -> None:
        answer = self.unload(lora, "nobody")
        assert answer.status == 404
        assert answer.json["error"]["message"] == "The lora adapter 'nobody' cannot be found."
        assert self.unload(lora, "").status == 400

    def test_paths_are_404_without_lora(self, fast: Server) -> None:
        assert self.load(fast, "a").status == self.unload(fast, "a").status == 404

    def test_loading_is_not_counted_as_a_request(self, lora: Server) -> None:
        lora.reset()
        self.load(lora, "uncounted")
        self.unload(lora, "uncounted")
        assert lora.requests()["total"] == 0

    @pytest.mark.parametrize(
        ("more", "waiting"), [([], "a,b"), (["--old-metric-names"], "c")], ids=["0.32", "older"]
    )
    def test_metrics_list_the_adapters_of_requests(self, more: list[str], waiting: str) -> None:
        labels = f'running_lora_adapters="a,b",waiting_lora_adapters="{waiting}"}}'

        async def crowd(server: Server) -> None:
            asking = []
            for model in ("a", "b", "c"):
                body = encoded(chat("hello", model=model, max_tokens=1_000, stream=True))
                asking.append(asyncio.create_task(ask("POST", server.url(CHAT), body)))
                await seen(server, "/load", f'{{"server_load": {len(asking)}}}')
            await seen(server, "/metrics", labels)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

        async def seen(server: Server, path: str, text: str) -> None:
            async with asyncio.timeout(5):
                while text.encode() not in (await ask("GET", server.url(path))).body:
                    await asyncio.sleep(0.01)

        arguments = ["--adapters", "a,b,c", "--max-loras", "2", "--max-cpu-loras", "3"]
        with stand_in("--ports", "0", *arguments, *more) as server:
            run(crowd(server))

    def test_metrics_without_lora_have_no_adapters(self, fast: Server) -> None:
        assert b"lora" not in fast.get("/metrics").body


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

    def test_requests_of_any_status_count_as_completed(self, fast: Server) -> None:
        fast.reset()
        fast.post(CHAT, chat("hello"))
        fast.post(CHAT, chat("hello", stream=True))
        fast.post(CHAT, b"bad")
        fast.post("/v1/embeddings", {"input": "x"})
        assert fast.requests() == {"in_flight": 0, "total": 4, "aborted": 0, "completed": 4}


class TestDiagnostics:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            (CHAT, encoded(chat("hello"))),
            (CHAT, encoded(chat("hello", stream=True))),
            (CHAT, b"not json"),
            ("/v1/embeddings", b"\x00\x01"),
            ("/stand-in/reset-cache", b""),
        ],
    )
    @pytest.mark.parametrize("replica", [0, 1])
    def test_response_to_a_post_describes_the_received_body(
        self, fast: Server, path: str, body: bytes, replica: int
    ) -> None:
        headers = fast.post(path, body, replica).headers
        assert headers["x-stand-in-port"] == str(fast.ports[replica])
        assert headers["x-stand-in-body-bytes"] == str(len(body))
        assert headers["x-stand-in-body-md5"] == hashlib.md5(body).hexdigest()

    def test_large_bodies_are_received_completely(self, fast: Server) -> None:
        body = bytes(8 * 2**20)
        answer = fast.post("/v1/audio/transcriptions", body)
        assert answer.headers["x-stand-in-body-md5"] == hashlib.md5(body).hexdigest()

    def test_compressed_bodies_are_not_decompressed(self, fast: Server) -> None:
        body = gzip.compress(b"hello")
        answer = fast.post("/v1/embeddings", body, headers={"content-encoding": "gzip"})
        assert answer.headers["x-stand-in-body-md5"] == hashlib.md5(body).hexdigest()

    @pytest.mark.parametrize(
        "path", ["/v1/audio/speech", "/v1/images/edits", "/inference/v1/generate", "/invocations"]
    )
    def test_other_apis_return_the_size_of_the_body(self, fast: Server, path: str) -> None:
        answer = fast.post(path, b"12345")
        assert answer.status == 200
        assert answer.json == {"object": "stand-in", "path": path, "bytes": 5}


class TestProcess:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_stops_cleanly_with_running_requests(self, number: signal.Signals) -> None:
        async def ask_and_stop(server: Server) -> None:
            body = encoded(chat("hello", max_tokens=1_000, stream=True))
            asking = asyncio.create_task(ask("POST", server.url(CHAT), body))
            await asyncio.sleep(0.2)
            server.process.send_signal(number)
            # The connection breaks; any error of the client library is fine.
            await asyncio.gather(asking, return_exceptions=True)

        with stand_in("--ports", "0,0", "--announce") as server:
            run(ask_and_stop(server))
            assert server.process.wait(5) == 0

    def test_reports_a_used_port_in_one_line(self, fast: Server) -> None:
        command = [
            sys.executable,
            "-m",
            "extproc.lab.stand_ins.vllm",
            "--ports",
            str(fast.ports[0]),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        assert result.returncode == 1
        assert result.stderr.startswith("stand-in vLLM: cannot listen on 127.0.0.1")
        assert result.stderr.count("\n") == 1

    def test_announces_ports_that_the_kernel_chooses(self) -> None:
        assert parse(["--ports", "0"]).announce
        assert not parse(["--ports", "8001"]).announce
        assert parse(["--ports", "8001", "--announce"]).announce

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["--ports", "x"],
            ["--ports", "70000"],
            ["--ports", "0", "--time-scale", "0"],
            ["--ports", "0", "--time-scale", "nan"],
            ["--ports", "0", "--kv-tokens", "15"],
            ["--ports", "0", "--max-num-seqs", "0"],
            ["--ports", "0", "--adapters", "a"],
            ["--ports", "0", "--adapters", "a", "--model", "b,a", "--max-loras", "1"],
            ["--ports", "0", "--max-loras", "0"],
            ["--ports", "0", "--max-loras", "2", "--max-cpu-loras", "1"],
            ["--ports", "0", "--max-loras", "1", "--lora-load-seconds", "-1"],
            ["--ports", "0", "--metrics-padding", "-1"],
        ],
    )
    def test_refuses_invalid_arguments(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            parse(arguments)
        assert exit_.value.code == 2

    def test_sizes_of_cache_and_batch_are_arguments(self) -> None:
        profile = parse(["--ports", "0", "--kv-tokens", "1600", "--max-num-seqs", "4"]).profile
        assert (profile.kv_blocks, profile.max_num_seqs) == (100, 4)

    def test_lora_is_off_by_default(self) -> None:
        assert parse(["--ports", "0"]).profile.max_loras == 0
        arguments = ["--max-loras", "2", "--max-cpu-loras", "4", "--lora-load-seconds", "0"]
        profile = parse(["--ports", "0", *arguments]).profile
        assert (profile.max_loras, profile.max_cpu_loras) == (2, 4)
        assert profile.lora_load_seconds == 0

    def test_metrics_may_be_old_and_large(self) -> None:
        arguments = ["--old-metric-names", "--metrics-padding", "50000"]
        with stand_in("--ports", "0", *arguments) as server:
            text = server.get("/metrics").body
        assert len(text) > 50_000
        assert b"vllm:gpu_cache_usage_perc{" in text
        assert b"vllm:kv_cache_usage_perc" not in text

    def test_many_streams_keep_the_speed_of_the_model(self) -> None:
        """Four replicas with thirty streams each, ten times faster than real time."""

        async def crowd(server: Server) -> float:
            start = time.perf_counter()
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

                async def one(replica: int) -> bytes:
                    body = chat("hello", stream=True, max_tokens=100)
                    async with session.post(server.url(CHAT, replica), json=body) as response:
                        return await response.read()

                answers = await asyncio.gather(*(one(i % 4) for i in range(120)))
            assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
            return time.perf_counter() - start

        with stand_in("--ports", "0,0,0,0", "--time-scale", "10") as server:
            # A hundred steps of 41 ms and more, plus admissions: 0.45 s if nothing else took time.
            assert 0.4 < run(crowd(server)) < 4.0
