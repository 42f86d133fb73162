"""The paths that SDKs request, with and without a prefix, and errors in each SDK's shape."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients import sdks
from tests.clients.sdk import FAST, arrived, asked, claude, client, port_of, user
from tests.e2e.scene import MODEL, Options, Scene

ADAPTER = "org/sql-lora"
OPTIONS = Options(adapters=[ADAPTER], replica_arguments=FAST)


class TestModels:
    def test_model_is_retrieved_by_its_id(self, gpt: sdks.openai.OpenAI) -> None:
        """The SDK writes the slash of an id as %2F."""
        for name in (MODEL, ADAPTER):
            assert gpt.models.retrieve(name).id == name

    def test_unknown_model_is_not_found(self, gpt: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.NotFoundError, match=f"gpt-9.*{MODEL}") as error:
            gpt.models.retrieve("gpt-9")
        assert error.value.code == "model_not_found"

    def test_anthropics_sdk_lists_and_retrieves_models(
        self, sonnet: sdks.anthropic.Anthropic
    ) -> None:
        assert [model.id for model in sonnet.models.list()] == [MODEL, ADAPTER]
        assert sonnet.models.retrieve(MODEL).id == MODEL


class TestPrefixes:
    @pytest.mark.parametrize("prefix", ["/team", "/team/llama", "/a/b/c/d/e"])
    def test_both_sdks_work_below_a_prefix(self, scene: Scene, prefix: str) -> None:
        with client(scene, prefix=prefix) as gpt:
            assert [model.id for model in gpt.models.list()] == [MODEL, ADAPTER]
            # The stand-in does not know paths with a prefix, so its response contains the path.
            raw = gpt.chat.completions.with_raw_response.create(**asked("hello"))
            assert raw.http_response.json()["path"] == f"{prefix}/v1/chat/completions"
        with claude(scene, prefix=prefix) as sonnet:
            message = sonnet.messages.with_raw_response.create(**asked("hello"))
            assert message.http_response.json()["path"] == f"{prefix}/v1/messages"

    def test_prefix_does_not_change_the_replica(
        self, scene: Scene, gpt: sdks.openai.OpenAI
    ) -> None:
        with client(scene, prefix="/team") as below:
            for number in range(10):
                question = asked(f"user {number}")
                home = gpt.chat.completions.with_raw_response.create(**question)
                other = below.chat.completions.with_raw_response.create(**question)
                assert port_of(home) == port_of(other)


class TestTokenCount:
    def test_counts_tokens_of_messages(self, sonnet: sdks.anthropic.Anthropic) -> None:
        """Claude Code sends this request before every turn."""
        counted = sonnet.messages.count_tokens(model=MODEL, messages=user("hello"))
        assert counted.input_tokens > 0
        beta = sonnet.beta.messages.count_tokens(model=MODEL, messages=user("hello"))
        assert beta.input_tokens == counted.input_tokens


class TestSingleModel:
    def test_request_without_a_model_is_served(self, gpt: sdks.openai.OpenAI) -> None:
        unnamed: Any = sdks.openai.omit
        chat = gpt.chat.completions.create(model=unnamed, messages=user("hello"))
        assert chat.choices[0].message.content


class TestAnthropicErrors:
    def test_unknown_model_is_not_found(self, sonnet: sdks.anthropic.Anthropic) -> None:
        question = asked("hello") | {"model": "claude-9"}
        with pytest.raises(sdks.anthropic.NotFoundError) as created:
            sonnet.messages.create(**question)
        with pytest.raises(sdks.anthropic.NotFoundError) as counted:
            sonnet.messages.count_tokens(model="claude-9", messages=user("hello"))
        for error in (created.value, counted.value):
            assert isinstance(error.body, dict)
            assert error.body["type"] == "error"
            assert error.body["error"]["type"] == "not_found_error"
            assert "claude-9" in error.body["error"]["message"]
            assert MODEL in error.body["error"]["message"]

    def test_bad_body_is_an_invalid_request(
        self, scene: Scene, sonnet: sdks.anthropic.Anthropic
    ) -> None:
        before = arrived(scene)
        with pytest.raises(sdks.anthropic.BadRequestError) as error:
            sonnet.messages.create(**asked("hello"), extra_body={"model": 7})
        assert isinstance(error.value.body, dict)
        assert error.value.body["type"] == "error"
        assert error.value.body["error"]["type"] == "invalid_request_error"
        assert arrived(scene) == before

    def test_refusal_is_raised_before_a_stream_begins(
        self, sonnet: sdks.anthropic.Anthropic
    ) -> None:
        question = asked("hello") | {"model": "claude-9"}
        with pytest.raises(sdks.anthropic.NotFoundError), sonnet.messages.stream(**question):
            pass


class TestStoredResponses:
    def test_response_is_retrieved_from_its_replica(self, gpt: sdks.openai.OpenAI) -> None:
        for number in range(12):
            made = gpt.responses.create(model=MODEL, input=f"user {number}")
            assert gpt.responses.retrieve(made.id).output_text == made.output_text

    def test_streamed_response_is_retrieved_from_its_replica(self, gpt: sdks.openai.OpenAI) -> None:
        for number in range(12):
            with gpt.responses.stream(model=MODEL, input=f"user {number}") as stream:
                made = stream.get_final_response()
            assert gpt.responses.retrieve(made.id).output_text == made.output_text

    def test_background_response_is_canceled_on_its_replica(self, gpt: sdks.openai.OpenAI) -> None:
        for number in range(12):
            made = gpt.responses.create(
                model=MODEL, input=f"user {number}", background=True, max_output_tokens=100_000
            )
            assert gpt.responses.cancel(made.id).status == "cancelled"

    def test_conversation_continues_on_the_replica_that_stores_it(
        self, gpt: sdks.openai.OpenAI
    ) -> None:
        for number in range(12):
            made = gpt.responses.create(model=MODEL, input=f"user {number}")
            for turn in range(3):
                made = gpt.responses.create(
                    model=MODEL, input=f"turn {turn}", previous_response_id=made.id
                )
            assert made.output_text

    def test_unknown_response_is_not_found(self, gpt: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.NotFoundError):
            gpt.responses.retrieve("resp_of_nothing")
