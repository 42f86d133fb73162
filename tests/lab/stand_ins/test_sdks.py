"""The official SDKs against a stand-in, without a router."""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest

from extproc.lab.stand_ins import tokens
from extproc.lab.stand_ins.anthropic_requests import messages_request
from tests.clients import sdks
from tests.lab.stand_ins.server import Json, Server, encoded, stand_in

TEXT = "the quick brown fox jumps over the lazy dog, again and again; " * 20
MODEL = "m"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Two replicas of one model, fifty times faster than real time."""
    with stand_in("--ports", "0,0", "--time-scale", "50", "--model", MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[sdks.openai.OpenAI]:
    """A client of OpenAI's SDK."""
    with sdks.openai.OpenAI(base_url=server.url("/v1"), api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: Server) -> Iterator[sdks.anthropic.Anthropic]:
    """A client of Anthropic's SDK."""
    with sdks.anthropic.Anthropic(base_url=server.url(""), api_key="none", max_retries=0) as client:
        yield client


def said(message: sdks.anthropic.types.Message) -> str:
    """Return the text of a message."""
    (block,) = message.content
    assert isinstance(block, sdks.anthropic.types.TextBlock)
    return block.text


class TestChats:
    def test_finish_reason_depends_on_the_limit(self, client: sdks.openai.OpenAI) -> None:
        messages: Any = [{"role": "user", "content": "hello"}]
        for limit, reason in ((sdks.openai.omit, "stop"), (4, "length")):
            chat = client.chat.completions.create(
                model=MODEL, messages=messages, max_completion_tokens=limit
            )
            assert chat.choices[0].finish_reason == reason

    def test_a_stream_adds_up_to_a_completion(self, client: sdks.openai.OpenAI) -> None:
        messages: Any = [{"role": "user", "content": "hello"}]
        whole = client.chat.completions.create(model=MODEL, messages=messages)
        with client.chat.completions.stream(
            model=MODEL, messages=messages, stream_options={"include_usage": True}
        ) as stream:
            streamed = stream.get_final_completion()
        assert streamed.choices[0].message.content == whole.choices[0].message.content
        assert streamed.usage is not None
        assert whole.usage is not None
        assert streamed.usage.completion_tokens == whole.usage.completion_tokens


class TestResponses:
    def test_a_response_has_text_and_usage(self, client: sdks.openai.OpenAI) -> None:
        response = client.responses.create(model=MODEL, input="hello", instructions="Be kind.")
        assert response.status == "completed"
        assert response.instructions == "Be kind."
        assert response.usage is not None
        assert response.usage.output_tokens == len(response.output_text) // tokens.TOKEN_BYTES

    def test_a_limit_makes_a_response_incomplete(self, client: sdks.openai.OpenAI) -> None:
        response = client.responses.create(model=MODEL, input="hello", max_output_tokens=16)
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"

    def test_a_stream_has_every_event_in_order(self, client: sdks.openai.OpenAI) -> None:
        events = list(
            client.responses.create(model=MODEL, input="hi", stream=True, max_output_tokens=2)
        )
        delta = "response.output_text.delta"
        assert [event.type for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            delta,
            delta,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))

    def test_a_stream_adds_up_to_the_response(self, client: sdks.openai.OpenAI) -> None:
        whole = client.responses.create(model=MODEL, input="hello")
        with client.responses.stream(model=MODEL, input="hello") as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            assert text == whole.output_text == stream.get_final_response().output_text

    def test_a_response_continues_the_conversation_in_the_cache(
        self, client: sdks.openai.OpenAI
    ) -> None:
        first = client.responses.create(model=MODEL, input="continue: " + TEXT)
        second = client.responses.create(
            model=MODEL, input="And then?", previous_response_id=first.id
        )
        assert first.usage is not None
        assert second.usage is not None
        total = first.usage.total_tokens
        assert second.usage.input_tokens_details.cached_tokens == (total - 1) // 16 * 16

    def test_a_response_is_retrieved_from_the_replica_that_made_it(
        self, client: sdks.openai.OpenAI, server: Server
    ) -> None:
        made = client.responses.create(model=MODEL, input="hello")
        assert client.responses.retrieve(made.id).output_text == made.output_text
        assert client.responses.with_raw_response.retrieve(made.id).headers[
            "x-stand-in-port"
        ] == str(server.ports[0])

        other = client.with_options(base_url=server.url("/v1", replica=1))
        with pytest.raises(sdks.openai.NotFoundError, match=f"'{made.id}' not found"):
            other.responses.retrieve(made.id)
        with pytest.raises(sdks.openai.NotFoundError, match="not found"):
            other.responses.create(model=MODEL, input="x", previous_response_id=made.id)

    def test_the_client_may_choose_the_id(self, client: sdks.openai.OpenAI) -> None:
        """The field is specific to vLLM."""
        body = {"request_id": "resp_of_my_own"}
        made = client.responses.create(model=MODEL, input="hello", extra_body=body)
        assert made.id == "resp_of_my_own"
        assert client.responses.retrieve("resp_of_my_own").output_text == made.output_text

    def test_a_response_may_not_be_stored(self, client: sdks.openai.OpenAI) -> None:
        made = client.responses.create(model=MODEL, input="hello", store=False)
        with pytest.raises(sdks.openai.NotFoundError):
            client.responses.retrieve(made.id)

    def test_a_background_response_is_retrieved_later(
        self, client: sdks.openai.OpenAI, server: Server
    ) -> None:
        made = client.responses.create(model=MODEL, input="hello", background=True)
        assert made.status == "queued"
        while client.responses.retrieve(made.id).status in ("queued", "in_progress"):
            assert server.metric("num_requests_running") <= 1
        assert len(client.responses.retrieve(made.id).output_text) > 0

    def test_only_a_background_response_is_cancelled(self, client: sdks.openai.OpenAI) -> None:
        with pytest.raises(sdks.openai.NotFoundError):
            client.responses.cancel("resp_of_nothing")
        made = client.responses.create(model=MODEL, input="hello")
        with pytest.raises(sdks.openai.BadRequestError, match="synchronous"):
            client.responses.cancel(made.id)
        long = client.responses.create(
            model=MODEL, input="hello", background=True, max_output_tokens=10_000
        )
        assert client.responses.cancel(long.id).status == "cancelled"
        assert client.responses.retrieve(long.id).status == "cancelled"

    @pytest.mark.parametrize("value", [None, 7, [7], [{}], [{"role": "user", "content": 7}]])
    def test_a_bad_input_is_400(self, server: Server, value: object) -> None:
        assert server.post("/v1/responses", {"model": MODEL, "input": value}).status == 400


class TestMessages:
    def test_a_message_has_text_and_usage(self, claude: sdks.anthropic.Anthropic) -> None:
        message = claude.messages.create(
            model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "hello"}]
        )
        assert message.stop_reason == "max_tokens"
        assert message.usage.output_tokens == 8
        assert len(said(message)) == 8 * tokens.TOKEN_BYTES

    def test_a_stream_has_every_event_in_order(self, server: Server) -> None:
        body = {"model": MODEL, "max_tokens": 2, "stream": True}
        body["messages"] = [{"role": "user", "content": "hello"}]
        lines = server.post("/v1/messages", body).body.decode().splitlines()
        events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        assert events == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]

    def test_a_stream_adds_up_to_the_message(self, claude: sdks.anthropic.Anthropic) -> None:
        asked: Any = {"model": MODEL, "max_tokens": 8}
        asked["messages"] = [{"role": "user", "content": "hello"}]
        whole = claude.messages.create(**asked)
        with claude.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == said(whole)
            final = stream.get_final_message()
        assert (final.role, final.type, final.stop_reason) == ("assistant", "message", "max_tokens")
        assert final.usage.output_tokens == whole.usage.output_tokens

    def test_usage_separates_cached_tokens(self, claude: sdks.anthropic.Anthropic) -> None:
        asked: Any = {"model": MODEL, "max_tokens": 1}
        asked["messages"] = [{"role": "user", "content": "cached: " + TEXT}]
        first, second = (claude.messages.create(**asked).usage for _ in range(2))
        assert first.cache_read_input_tokens == 0
        assert second.cache_read_input_tokens
        assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens

    def test_tokens_are_counted_without_generating(
        self, claude: sdks.anthropic.Anthropic, server: Server
    ) -> None:
        messages: Any = [{"role": "user", "content": TEXT}]
        generated = server.metric("generation_tokens_total")
        counted = claude.messages.count_tokens(model=MODEL, messages=messages)
        assert server.metric("generation_tokens_total") == generated
        usage = claude.messages.create(model=MODEL, max_tokens=1, messages=messages).usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)

    def test_unknown_model_is_an_error_in_anthropics_shape(
        self, claude: sdks.anthropic.Anthropic
    ) -> None:
        messages: Any = [{"role": "user", "content": "hello"}]
        with pytest.raises(sdks.anthropic.NotFoundError) as created:
            claude.messages.create(model="other", messages=messages, max_tokens=1)
        with pytest.raises(sdks.anthropic.NotFoundError) as counted:
            claude.messages.count_tokens(model="other", messages=messages)
        message = "The model `other` does not exist."
        shape = {"type": "error", "error": {"type": "NotFoundError", "message": message}}
        assert created.value.body == counted.value.body == shape

    @pytest.mark.parametrize(
        "change", [{"max_tokens": 0}, {"max_tokens": None}, {"model": ""}, {"messages": 7}]
    )
    def test_invalid_body_is_an_error_in_openais_shape(self, server: Server, change: Json) -> None:
        """Bodies are validated in the same way on every path of vLLM (vLLM issue 57997)."""
        body = {"model": MODEL, "max_tokens": 1, "messages": [], **change}
        answer = server.post("/v1/messages", body)
        assert answer.status == 400
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}

    @pytest.mark.parametrize(
        "change", [{"messages": [7]}, {"system": 7}, {"messages": [{"role": "user", "content": 7}]}]
    )
    def test_a_bad_message_is_400(self, server: Server, change: Json) -> None:
        body = {"model": MODEL, "max_tokens": 1, "messages": [], **change}
        assert server.post("/v1/messages", body).status == 400


def prompt(system: object, *messages: Json) -> bytes:
    """Return the prompt tokens of a body for Anthropic's Messages API."""
    body = {"model": MODEL, "max_tokens": 1, "system": system, "messages": list(messages)}
    return messages_request(encoded(body)).prompt


class TestPromptsOfMessages:
    def test_billing_block_is_dropped(self) -> None:
        text = {"type": "text", "text": "You are Claude."}
        billing = {"type": "text", "text": "x-anthropic-billing-header: cch=a1b2c;"}
        user = {"role": "user", "content": "hello"}
        assert prompt([billing, text], user) == prompt([text], user)
        assert prompt([text], user) == prompt("You are Claude.", user)
        inline = {"role": "system", "content": [billing, text]}
        assert prompt(None, user, inline) == prompt([text], user)

    def test_billing_block_of_a_user_is_kept(self) -> None:
        billing = {"type": "text", "text": "x-anthropic-billing-header: cch=a1b2c;"}
        quoted = {"role": "user", "content": [billing]}
        assert prompt(None, quoted) != prompt(None, {"role": "user", "content": []})

    def test_system_messages_move_to_the_front(self) -> None:
        user = {"role": "user", "content": "hello"}
        system = {"role": "system", "content": "Be kind."}
        assert prompt("You are Claude.", user, system) == prompt("You are Claude.Be kind.", user)

    def test_roles_of_claude_code_become_users(self) -> None:
        for role in ("ctx", "msg"):
            odd = {"role": role, "content": "hello"}
            assert prompt(None, odd) == prompt(None, {"role": "user", "content": "hello"})

    def test_tools_and_images_are_part_of_the_prompt(self) -> None:
        blocks = [
            {"type": "tool_use", "id": "1", "name": "ls", "input": {"path": "/"}},
            {"type": "tool_result", "tool_use_id": "1", "content": "bin"},
            {"type": "image", "source": {"type": "base64", "data": "aGVsbG8="}},
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
        ]
        prompts = [prompt(None, {"role": "user", "content": [block]}) for block in blocks]
        assert len({prompt(None, {"role": "user", "content": []}), *prompts}) == 5


class TestEmbeddings:
    def test_both_encodings_have_the_same_numbers(self, client: sdks.openai.OpenAI) -> None:
        """The SDK requests base64 by default."""
        packed = client.embeddings.create(model=MODEL, input=["hello", "other"])
        plain = client.embeddings.create(
            model=MODEL, input=["hello", "other"], encoding_format="float"
        )
        assert len(packed.data) == 2
        for one, other in zip(packed.data, plain.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding)
        assert packed.usage.total_tokens == 2 + 2

    def test_an_empty_text_has_an_embedding(self, server: Server) -> None:
        assert server.post("/v1/embeddings", {"input": ""}).status == 200

    def test_base64_encodes_little_endian_floats(self, server: Server) -> None:
        body = {"input": "hello", "encoding_format": "base64", "dimensions": 8}
        text = server.post("/v1/embeddings", body).json["data"][0]["embedding"]
        plain = server.post("/v1/embeddings", {"input": "hello", "dimensions": 8}).json
        assert list(struct.unpack("<8f", b64decode(text))) == pytest.approx(
            plain["data"][0]["embedding"]
        )

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"input": []},
            {"input": 7},
            {"input": "x", "encoding_format": "xml"},
            {"input": "x", "dimensions": 0},
        ],
    )
    def test_a_bad_request_is_400(self, server: Server, body: Json) -> None:
        assert server.post("/v1/embeddings", body).status == 400


class TestScores:
    def test_documents_are_ranked(self, server: Server) -> None:
        documents = ["entirely different words", "the quick brown fox", "the quick brown dog"]
        body = {"model": MODEL, "query": "the quick brown fox", "documents": documents, "top_n": 2}
        results = server.post("/v1/rerank", body).json["results"]
        assert [result["index"] for result in results] == [1, 2]
        assert results[0]["document"]["text"] == documents[1]
        assert results[0]["relevance_score"] == pytest.approx(1)

    def test_each_pair_has_a_score(self, server: Server) -> None:
        body = {"text_1": "fox", "text_2": ["fox", "dog"]}
        data = server.post("/v1/score", body).json["data"]
        assert [entry["index"] for entry in data] == [0, 1]
        assert data[0]["score"] > data[1]["score"]

    def test_each_input_has_a_class_and_a_pooled_vector(self, server: Server) -> None:
        classes = server.post("/classify", {"input": ["a", "b"]}).json["data"]
        assert [sum(entry["probs"]) for entry in classes] == [1, 1]
        pooled = server.post("/pooling", {"input": ["a", "b"]}).json["data"]
        assert [entry["object"] for entry in pooled] == ["pooling", "pooling"]

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/rerank", {"query": "x"}),
            ("/v1/rerank", {"query": "x", "documents": ["y"], "top_n": -1}),
            ("/v1/score", {"text_1": "x"}),
            ("/v1/score", {"text_1": ["x", "y"], "text_2": ["z"]}),
            ("/classify", {}),
        ],
    )
    def test_a_bad_request_is_400(self, server: Server, path: str, body: Json) -> None:
        assert server.post(path, body).status == 400


class TestTokens:
    def test_detokenize_returns_the_text(self, server: Server) -> None:
        counted = server.post("/tokenize", {"model": MODEL, "prompt": "hello you"}).json
        assert counted["count"] == len(counted["tokens"]) == 3
        assert counted["max_model_len"] == 16_384
        again = server.post("/detokenize", {"model": MODEL, "tokens": counted["tokens"]}).json
        assert again == {"prompt": "hello you"}

    def test_a_chat_has_as_many_tokens_as_its_prompt(
        self, server: Server, client: sdks.openai.OpenAI
    ) -> None:
        messages: Any = [{"role": "user", "content": "hello"}]
        usage = client.chat.completions.create(model=MODEL, messages=messages).usage
        assert usage is not None
        counted = server.post("/tokenize", {"model": MODEL, "messages": messages}).json
        assert counted["count"] == usage.prompt_tokens

    @pytest.mark.parametrize("body", [{}, {"prompt": 7}, {"messages": []}])
    def test_a_bad_request_is_400(self, server: Server, body: Json) -> None:
        assert server.post("/tokenize", body).status == 400
        assert server.post("/detokenize", body).status == 400


def test_speech_is_transcribed(client: sdks.openai.OpenAI) -> None:
    speech = client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"RIFF"))
    assert len(speech.text) == 8 * tokens.TOKEN_BYTES


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/responses", "/tokenize"])
def test_unknown_model_is_404_on_every_path(server: Server, path: str) -> None:
    body = {"model": "other", "input": "x", "query": "x", "documents": ["y"], "prompt": "x"}
    answer = server.post(path, body)
    assert answer.status == 404
    assert answer.json["error"]["message"] == "The model `other` does not exist."
