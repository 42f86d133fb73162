"""Invalid and aborted requests to a stand-in server."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.extent import PATIENCE
from tests.lab.stand_ins.server import (
    CHAT,
    COMPLETIONS,
    Json,
    Server,
    ask,
    chat,
    encoded,
    run,
    stand_in,
)


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
        answer = slow.post(CHAT, chat("hello", model="unknown"))
        assert answer.status == 404
        assert "`unknown`" in answer.json["error"]["message"]
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
        deadline = time.monotonic() + PATIENCE
        while server.requests()["in_flight"] or server.metric("num_requests_running"):
            assert time.monotonic() < deadline, "the requests were not aborted"
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
        deadline = time.monotonic() + PATIENCE
        while fast.requests(1)["in_flight"]:
            assert time.monotonic() < deadline
        assert fast.requests(1) == {"in_flight": 0, "total": 1, "aborted": 1, "completed": 0}
