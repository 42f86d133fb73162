"""One endpoint that refuses connections fails no request; if all refuse, the error is clear."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from tests.clients import sdks
from tests.clients.sdk import FAST, asked, client, run, user
from tests.e2e.scene import Json, Options, Scene

# Bound but not listening, so a port refuses connections, and no other process gets it meanwhile.
_BOUND = (socket.socket(), socket.socket())
for _each in _BOUND:
    _each.bind(("127.0.0.1", 0))

DEAD, ALSO_DEAD = (f"127.0.0.1:{each.getsockname()[1]}" for each in _BOUND)
GONE = {"name": "gone", "endpoints": [ALSO_DEAD]}
"""A model whose only endpoint refuses connections."""

REQUESTS = 60
STRATEGIES = ("PrefixHash", "LeastLoad", "PrefixCache", "RoundRobin")


class EachStrategy(Options):
    """One model for each strategy, with the replicas and an endpoint that refuses connections."""

    def models(self, addresses: Sequence[str]) -> Json:
        """Return the models document."""
        endpoints = [*addresses, DEAD]
        each = [
            {"name": name, "endpoints": endpoints, "loadBalancing": {"strategy": name}}
            for name in STRATEGIES
        ]
        return {"models": [*each, GONE]}


OPTIONS = EachStrategy(replica_arguments=FAST)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_dead_endpoint_fails_no_request(gpt: sdks.openai.OpenAI, strategy: str) -> None:
    for number in range(REQUESTS):
        messages = user(f"user {number}, with a prefix of their own")
        assert gpt.chat.completions.create(model=strategy, messages=messages, max_tokens=1).choices


def test_one_dead_endpoint_fails_no_large_request(gpt: sdks.openai.OpenAI) -> None:
    for number in range(REQUESTS):
        messages = user(f"user {number}: " + "x" * 140_000)
        assert gpt.chat.completions.create(model="PrefixHash", messages=messages).choices


def test_one_dead_endpoint_fails_no_stream(sonnet: sdks.anthropic.Anthropic) -> None:
    for number in range(REQUESTS):
        question = asked(f"user {number}, who streams") | {"model": "RoundRobin"}
        with sonnet.messages.stream(**question) as stream:
            assert "".join(stream.text_stream)


def test_model_without_a_live_endpoint_is_a_server_error(
    gpt: sdks.openai.OpenAI, sonnet: sdks.anthropic.Anthropic
) -> None:
    question = asked("hello") | {"model": "gone"}
    with pytest.raises(sdks.openai.InternalServerError) as error:
        gpt.chat.completions.create(**question)
    assert error.value.status_code == 503
    assert error.value.code in ("upstream_unavailable", "no_endpoints")
    with pytest.raises(sdks.anthropic.APIStatusError) as refused:
        sonnet.messages.create(**question)
    assert refused.value.status_code == 503
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["error"]["message"]


def test_retries_of_the_sdk_end_with_the_same_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("openai._base_client.time.sleep", pauses.append)
    with (
        client(scene, max_retries=2) as gpt,
        pytest.raises(sdks.openai.InternalServerError),
    ):
        gpt.chat.completions.create(**asked("hello") | {"model": "gone"})
    assert len(pauses) == 2


def test_no_request_stays_in_flight(scene: Scene) -> None:
    run(scene.agree_on_inflight(0))
