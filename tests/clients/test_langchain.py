"""LangChain's chat models against the shipped configuration."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from tests.clients import sdks
from tests.clients.sdk import FAST, arrived
from tests.e2e.scene import MODEL, Options, Scene

OPTIONS = Options(replica_arguments=FAST)
KEY = SecretStr("none")
APIS = ("chat completions", "responses", "messages")


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the traces of LangSmith."""
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")


def chat_model(
    scene: Scene, api: str, model: str = MODEL
) -> sdks.langchain_core.language_models.BaseChatModel:
    """Return a chat model that uses one of the APIs."""
    options: dict[str, Any] = {"model": model, "max_retries": 0, "max_tokens": 8}
    if api == "messages":
        return sdks.langchain_anthropic.ChatAnthropic(
            base_url=scene.envoy.url, api_key=KEY, **options
        )
    return sdks.langchain_openai.ChatOpenAI(
        base_url=scene.envoy.url + "/v1",
        api_key=KEY,
        use_responses_api=api == "responses",
        **options,
    )


@pytest.mark.parametrize("api", APIS)
def test_stream_has_the_text_of_the_response(scene: Scene, api: str) -> None:
    model = chat_model(scene, api)
    whole = model.invoke("hello")
    assert isinstance(whole, sdks.langchain_core.messages.AIMessage)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 8
    assert "".join(chunk.text for chunk in model.stream("hello")) == whole.text


# LangChain's models share connections, and these belong to one event loop.
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("api", APIS)
async def test_asynchronous_response_is_the_same(scene: Scene, api: str) -> None:
    model = chat_model(scene, api)
    assert (await model.ainvoke("hello")).text == model.invoke("hello").text


@pytest.mark.parametrize("api", APIS)
def test_all_requests_of_a_batch_are_served(scene: Scene, api: str) -> None:
    before = arrived(scene)
    responses = chat_model(scene, api).batch([f"question {number}" for number in range(10)])
    assert all(response.text for response in responses)
    assert arrived(scene) == before + 10


def test_conversation_continues(scene: Scene) -> None:
    model = chat_model(scene, "chat completions")
    first = model.invoke("hello")
    assert model.invoke(
        [
            sdks.langchain_core.messages.HumanMessage("hello"),
            first,
            sdks.langchain_core.messages.HumanMessage("And then?"),
        ]
    ).text


def test_embeddings_are_computed(scene: Scene) -> None:
    # For the check of the context length, LangChain would download a tokenizer.
    embeddings = sdks.langchain_openai.OpenAIEmbeddings(
        model=MODEL,
        openai_api_base=scene.envoy.url + "/v1",
        openai_api_key=KEY,
        check_embedding_ctx_length=False,
    )
    assert len(embeddings.embed_documents(["a", "b"])) == 2


@pytest.mark.parametrize("api", APIS)
def test_unknown_model_is_not_found(scene: Scene, api: str) -> None:
    with pytest.raises(
        (sdks.openai.NotFoundError, sdks.anthropic.NotFoundError), match=f"gpt-9.*{MODEL}"
    ):
        chat_model(scene, api, model="gpt-9").invoke("hello")
