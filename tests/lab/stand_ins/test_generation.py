"""Chats and completions of a stand-in server, with and without streaming."""

from __future__ import annotations

import time

import aiohttp
import pytest

from tests.lab.stand_ins.server import (
    CHAT,
    COMPLETIONS,
    LONG_WORDS,
    Server,
    answer_of,
    cached_tokens,
    chat,
    run,
)


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
        # The prompt takes 1.4 s: 6,200 tokens at 4,300 per second.
        assert first > 1.4
        assert headers < first - 0.5

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
        assert times[-1] - times[0] > 0.2


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
