"""Anthropic's Python SDK against the shipped configuration."""

from __future__ import annotations

from typing import Any

from tests.clients import sdks
from tests.clients.sdk import ARTICLE, FAST, asked, port_of, run
from tests.e2e.scene import MODEL, Options, Scene

OPTIONS = Options(replica_arguments=FAST)


def text_of(message: sdks.anthropic.types.Message) -> str:
    """Return the text of a message."""
    return "".join(
        block.text for block in message.content if isinstance(block, sdks.anthropic.types.TextBlock)
    )


def test_message_has_text_and_usage(sonnet: sdks.anthropic.Anthropic) -> None:
    message = sonnet.messages.create(**asked("hello", tokens=5), system="You are kind.")
    assert message.model == MODEL
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 5
    assert text_of(message)


def test_stream_has_the_text_of_the_message(sonnet: sdks.anthropic.Anthropic) -> None:
    question = asked("stream", tokens=20)
    whole = sonnet.messages.create(**question)
    with sonnet.messages.stream(**question) as stream:
        assert "".join(stream.text_stream) == text_of(whole)
        final = stream.get_final_message()
    assert final.usage.output_tokens == whole.usage.output_tokens == 20


def test_closing_a_stream_early_releases_its_endpoint(
    scene: Scene, sonnet: sdks.anthropic.Anthropic
) -> None:
    with sonnet.messages.stream(**asked("closed", tokens=5_000)) as stream:
        assert next(iter(stream)).type == "message_start"
    run(scene.agree_on_inflight(0))


def test_beta_query_of_claude_code_changes_nothing(sonnet: sdks.anthropic.Anthropic) -> None:
    question: Any = asked("beta")
    plain = sonnet.messages.with_raw_response.create(**question)
    beta = sonnet.messages.with_raw_response.create(**question, extra_query={"beta": "true"})
    assert text_of(beta.parse()) == text_of(plain.parse())
    assert port_of(beta) == port_of(plain)


def test_conversation_stays_on_its_replica(sonnet: sdks.anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": ARTICLE}]
    ports, cached = set(), []
    for turn in range(4):
        raw = sonnet.messages.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=8, system="You are kind."
        )
        ports.add(port_of(raw))
        message = raw.parse()
        cached.append(message.usage.cache_read_input_tokens or 0)
        messages += [
            {"role": "assistant", "content": text_of(message)},
            {"role": "user", "content": f"And then, {turn}?"},
        ]
    assert len(ports) == 1
    assert cached[0] == 0 < min(cached[1:])
