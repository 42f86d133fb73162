"""OpenAI's Python SDK against the shipped configuration."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from tests.clients import sdks
from tests.clients.sdk import (
    FAST,
    Json,
    asked,
    async_client,
    joined,
    port_of,
    run,
    user,
)
from tests.e2e.scene import MODEL, Options, Scene

ADAPTER = "sql-lora"
OPTIONS = Options(adapters=[ADAPTER], replica_arguments=FAST)


class TestChat:
    def test_chat_has_usage(self, gpt: sdks.openai.OpenAI) -> None:
        chat = gpt.chat.completions.create(**asked("hello", tokens=5))
        assert chat.model == MODEL
        assert chat.choices[0].finish_reason == "length"
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 5
        assert chat.usage.prompt_tokens_details is not None

    async def test_many_concurrent_chats_are_served(self, scene: Scene) -> None:
        async with async_client(scene) as gpt:
            chats = await asyncio.gather(
                *(gpt.chat.completions.create(**asked(f"user {i}")) for i in range(40))
            )
        assert {chat.choices[0].finish_reason for chat in chats} == {"length"}

    @pytest.mark.parametrize("times", [1, 3])
    def test_stream_has_the_text_of_the_chat(self, gpt: sdks.openai.OpenAI, times: int) -> None:
        question = asked("stream " * times, tokens=20)
        whole = gpt.chat.completions.create(**question)
        chunks = list(
            gpt.chat.completions.create(
                **question, stream=True, stream_options={"include_usage": True}
            )
        )
        text = joined(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        last = chunks[-1].usage
        assert last is not None
        assert whole.usage is not None
        assert last.completion_tokens == whole.usage.completion_tokens == 20

    async def test_asynchronous_stream_has_the_text_of_the_chat(self, scene: Scene) -> None:
        question = asked("asynchronous", tokens=20)
        async with async_client(scene) as gpt:
            whole = await gpt.chat.completions.create(**question)
            stream = await gpt.chat.completions.create(**question, stream=True)
            text = joined([chunk.choices[0].delta.content async for chunk in stream])
        assert text == whole.choices[0].message.content

    def test_closing_a_stream_early_releases_its_endpoint(
        self, scene: Scene, gpt: sdks.openai.OpenAI
    ) -> None:
        with gpt.chat.completions.create(**asked("closed", tokens=5_000), stream=True) as stream:
            assert next(iter(stream)).choices[0].delta.role == "assistant"
        run(scene.agree_on_inflight(0))

    def test_conversation_stays_on_its_replica(self, gpt: sdks.openai.OpenAI) -> None:
        messages = user("A conversation of its own. " * 20)
        ports = set()
        for turn in range(4):
            raw = gpt.chat.completions.with_raw_response.create(
                model=MODEL, messages=messages, max_tokens=8
            )
            ports.add(port_of(raw))
            content = raw.parse().choices[0].message.content
            messages += [
                {"role": "assistant", "content": content},
                {"role": "user", "content": f"And then, {turn}?"},
            ]
        assert len(ports) == 1

    def test_body_arrives_unchanged(self, gpt: sdks.openai.OpenAI) -> None:
        raw = gpt.chat.completions.with_raw_response.create(**asked("unchanged"))
        sent = raw.http_request.content
        assert raw.headers["x-stand-in-body-md5"] == hashlib.md5(sent).hexdigest()


class TestOtherApis:
    def test_completion_has_a_choice_for_each_prompt(self, gpt: sdks.openai.OpenAI) -> None:
        completion = gpt.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=3)
        assert [choice.index for choice in completion.choices] == [0, 1]

    def test_stream_has_the_text_of_the_completion(self, gpt: sdks.openai.OpenAI) -> None:
        question: Json = {"model": MODEL, "prompt": "once upon a time", "max_tokens": 9}
        whole = gpt.completions.create(**question).choices[0].text
        chunks = gpt.completions.create(**question, stream=True)
        assert joined(chunk.choices[0].text for chunk in chunks) == whole

    def test_embeddings_are_the_same_in_both_encodings(self, gpt: sdks.openai.OpenAI) -> None:
        packed = gpt.embeddings.create(model=MODEL, input=["hello"])
        plain = gpt.embeddings.create(model=MODEL, input=["hello"], encoding_format="float")
        assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding)

    def test_stream_has_the_text_of_the_response(self, gpt: sdks.openai.OpenAI) -> None:
        whole = gpt.responses.create(model=MODEL, input="hello")
        with gpt.responses.stream(model=MODEL, input="hello") as stream:
            text = joined(e.delta for e in stream if e.type == "response.output_text.delta")
            assert stream.get_final_response().usage == whole.usage
        assert text == whole.output_text

    def test_speech_is_transcribed(self, gpt: sdks.openai.OpenAI) -> None:
        """The SDK sends a form that names its model after the file."""
        audio = ("speech.wav", b"RIFF" + bytes(range(256)) * 1_000)
        assert gpt.audio.transcriptions.create(model=MODEL, file=audio).text

    def test_models_and_adapters_are_listed(self, gpt: sdks.openai.OpenAI) -> None:
        assert [model.id for model in gpt.models.list()] == [MODEL, ADAPTER]


class TestErrors:
    def test_error_for_an_unknown_model_lists_known_models(self, gpt: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.NotFoundError, match=f"gpt-9.*{MODEL}") as error:
            gpt.chat.completions.create(model="gpt-9", messages=user("hello"))
        assert error.value.code == "model_not_found"
        assert error.value.type == "invalid_request_error"

    def test_unknown_path_is_not_found(self, gpt: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.NotFoundError) as error:
            gpt.files.list()
        assert isinstance(error.value.body, dict)
        assert error.value.body["message"]

    def test_bad_body_is_a_bad_request(self, gpt: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.BadRequestError) as error:
            gpt.chat.completions.create(**asked("hello"), extra_body={"model": 7})
        assert error.value.code == "invalid_request"
        assert "model" in error.value.message

    def test_error_of_the_replica_reaches_the_client(self, gpt: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.BadRequestError, match="maximum context length"):
            gpt.chat.completions.create(**asked("hello", tokens=10**9))

    def test_error_is_raised_before_a_stream_begins(self, gpt: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.NotFoundError):
            gpt.chat.completions.create(model="gpt-9", messages=user("hello"), stream=True)
