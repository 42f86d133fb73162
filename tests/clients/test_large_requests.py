"""Prompts and images larger than Envoy's buffers, from SDKs that write the model after them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pydantic import SecretStr

from tests.clients import sdks
from tests.clients.sdk import FAST, asked, async_client, joined, port_of, user, with_image
from tests.e2e.scene import MODEL, Options, Scene

# With two models, a request must name its model to be routed.
OTHER = {"name": "other", "endpoints": ["127.0.0.1:9"]}
OPTIONS = Options(strategy="PrefixCache", replica_arguments=FAST, more_models=[OTHER])

KB, MB = 1_000, 1_000_000
SIZES = (131 * KB, 140 * KB, 400 * KB, 3 * MB, 8 * MB)
"""Sizes of prompts in bytes. Envoy buffers bodies of up to 8 MiB."""


def sized(size: int) -> str:
    """Return a prompt of `size` bytes without repetitions."""
    return "".join(f"{number:07} " for number in range(size // 8 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
def test_large_prompt_arrives_whole(gpt: sdks.openai.OpenAI, size: int) -> None:
    raw = gpt.chat.completions.with_raw_response.create(**asked(sized(size)))
    sent = raw.http_request.content
    assert len(sent) > size
    assert sent.index(b'"model"') > size
    assert raw.headers["x-stand-in-body-md5"] == hashlib.md5(sent).hexdigest()


@pytest.mark.parametrize("size", SIZES)
def test_large_prompt_gets_a_stream(gpt: sdks.openai.OpenAI, size: int) -> None:
    chunks = gpt.chat.completions.create(**asked(sized(size), tokens=9), stream=True)
    assert len(joined(chunk.choices[0].delta.content for chunk in chunks)) == 9 * 4


async def test_asynchronous_client_sends_large_prompts(scene: Scene) -> None:
    async with async_client(scene) as gpt:
        for size in SIZES:
            assert (await gpt.chat.completions.create(**asked(sized(size)))).choices


@pytest.mark.parametrize("size", [140 * KB, 3 * MB])
def test_other_apis_accept_large_prompts(gpt: sdks.openai.OpenAI, size: int) -> None:
    assert gpt.responses.create(model=MODEL, input=sized(size)).output_text
    assert gpt.completions.create(model=MODEL, prompt=sized(size), max_tokens=2).choices
    assert gpt.embeddings.create(model=MODEL, input=sized(size)).data


@pytest.mark.parametrize("size", [140 * KB, 3 * MB])
def test_anthropics_sdk_sends_large_prompts(sonnet: sdks.anthropic.Anthropic, size: int) -> None:
    assert sonnet.messages.create(**asked(sized(size))).content
    with sonnet.messages.stream(**asked(sized(size), tokens=9)) as stream:
        assert len("".join(stream.text_stream)) == 9 * 4


@pytest.mark.parametrize("size", [140 * KB, 3 * MB])
def test_langchain_sends_large_prompts(scene: Scene, size: int) -> None:
    url, key = scene.envoy.url + "/v1", SecretStr("none")
    model = sdks.langchain_openai.ChatOpenAI(model=MODEL, base_url=url, api_key=key, max_retries=0)
    assert model.invoke(sized(size)).text


@pytest.mark.parametrize("size", [100 * KB, 1 * MB, 5 * MB])
def test_image_arrives_whole(gpt: sdks.openai.OpenAI, size: int) -> None:
    raw = gpt.chat.completions.with_raw_response.create(
        model=MODEL, messages=with_image(size), max_tokens=2
    )
    sent = raw.http_request.content
    assert len(sent) > size
    assert raw.headers["x-stand-in-body-md5"] == hashlib.md5(sent).hexdigest()


def test_anthropics_sdk_sends_large_images(sonnet: sdks.anthropic.Anthropic) -> None:
    url = with_image(400 * KB)[0]["content"][0]["image_url"]["url"]
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    messages: Any = user("What is in this image?")
    messages[0]["content"] = [{"type": "image", "source": source}]
    assert sonnet.messages.create(model=MODEL, messages=messages, max_tokens=2).content


@pytest.mark.parametrize("size", [140 * KB, 3 * MB])
def test_each_large_conversation_stays_on_its_replica(gpt: sdks.openai.OpenAI, size: int) -> None:
    """The sidecar reads the whole prompt: these conversations differ only at the end."""
    head = sized(size)
    homes: dict[str, set[str]] = {}
    for _ in range(3):
        for ending in ("one", "two"):
            # The endings are as long as several blocks.
            question = asked(f"{head} {ending * 500}", tokens=2)
            raw = gpt.chat.completions.with_raw_response.create(**question)
            homes.setdefault(ending, set()).add(port_of(raw))
    assert [len(ports) for ports in homes.values()] == [1, 1]


def test_unknown_model_after_a_large_prompt_is_not_found(gpt: sdks.openai.OpenAI) -> None:
    with pytest.raises(sdks.openai.NotFoundError, match="gpt-9"):
        gpt.chat.completions.create(model="gpt-9", messages=user(sized(3 * MB)))


def test_error_for_more_than_8_mib_names_the_header_to_set(gpt: sdks.openai.OpenAI) -> None:
    with pytest.raises(sdks.openai.BadRequestError, match="x-model"):
        gpt.chat.completions.create(**asked(sized(9 * MB)))


def test_header_with_the_model_allows_more_than_8_mib(gpt: sdks.openai.OpenAI) -> None:
    raw = gpt.chat.completions.with_raw_response.create(
        **asked(sized(9 * MB)), extra_headers={"x-model": MODEL}
    )
    sent = raw.http_request.content
    assert raw.headers["x-stand-in-body-md5"] == hashlib.md5(sent).hexdigest()
