"""LiteLLM against the shipped configuration, in its own module because its import is slow."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.clients import sdks
from tests.clients.sdk import FAST, asked, joined, user
from tests.e2e.scene import MODEL, Options, Scene

OPTIONS = Options(replica_arguments=FAST)
PROVIDERS = ("openai", "hosted_vllm")
"""The first uses OpenAI's SDK; the second has its own HTTP client and writes its own body."""


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    """Disable downloads, telemetry and hints on stdout."""
    # LiteLLM reads this during its import. Without it, LiteLLM fetches a price list from GitHub.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    sdks.litellm.telemetry = False
    sdks.litellm.suppress_debug_info = True


def options(scene: Scene, provider: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of a request."""
    where = {"api_base": scene.envoy.url + "/v1", "api_key": "none", "max_retries": 0}
    return {**where, **more, "model": f"{provider}/{more.get('model', MODEL)}"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_stream_has_the_text_of_the_chat(scene: Scene, provider: str) -> None:
    question = options(scene, provider, **asked("hello", tokens=12))
    whole = sdks.litellm.completion(**question)
    assert whole.usage.completion_tokens == 12
    chunks = sdks.litellm.completion(**question, stream=True)
    text = joined(chunk.choices[0].delta.content for chunk in chunks)
    assert text == whole.choices[0].message.content


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_asynchronous_chat_has_text(scene: Scene, provider: str) -> None:
    chat = await sdks.litellm.acompletion(**options(scene, provider, **asked("hello")))
    assert chat.choices[0].message.content


def test_message_over_anthropics_api_has_usage(scene: Scene) -> None:
    question = options(scene, "anthropic", **asked("hello", tokens=7))
    message = sdks.litellm.completion(**{**question, "api_base": scene.envoy.url})
    assert message.usage.completion_tokens == 7


def test_embeddings_and_ranks_are_computed(scene: Scene) -> None:
    embedded = sdks.litellm.embedding(**options(scene, "hosted_vllm", input=["hello"]))
    assert embedded.data[0]["embedding"]
    ranking = options(scene, "hosted_vllm", query="fox", documents=["dog", "fox"])
    ranked = sdks.litellm.rerank(**{**ranking, "api_base": scene.envoy.url})
    assert [result["index"] for result in ranked.results] == [1, 0]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_unknown_model_is_not_found(scene: Scene, provider: str) -> None:
    with pytest.raises(sdks.litellm.exceptions.NotFoundError, match=f"gpt-9.*{MODEL}"):
        sdks.litellm.completion(**options(scene, provider, model="gpt-9", messages=user("hello")))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_bad_body_is_a_bad_request(scene: Scene, provider: str) -> None:
    question = options(scene, provider, **asked("hello", tokens=10**9))
    with pytest.raises(sdks.litellm.exceptions.BadRequestError, match="maximum context length"):
        sdks.litellm.completion(**question)
