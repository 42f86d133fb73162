"""Session ids of clients: all requests of a session go to one replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.clients import sdks
from tests.clients.sdk import FAST, asked, port_of, user
from tests.e2e.scene import MODEL, Json, Options


class BySession(Options):
    """One model that routes requests by their session id."""

    def models(self, addresses: Sequence[str]) -> Json:
        """Return the models document."""
        balancing = {"strategy": "PrefixHash", "prefixHash": {"prefixSource": "Session"}}
        model = {"name": MODEL, "endpoints": list(addresses), "loadBalancing": balancing}
        return {"models": [model]}


OPTIONS = BySession(replicas=4, replica_arguments=FAST)
SESSIONS = 10
HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "x-session-id")


@pytest.mark.parametrize("header", HEADERS)
def test_header_keeps_a_session_on_one_replica(gpt: sdks.openai.OpenAI, header: str) -> None:
    homes = {}
    for session in range(SESSIONS):
        headers = {header: f"{header}-{session}"}
        raws = [
            gpt.chat.completions.with_raw_response.create(
                **asked(f"question {turn}"), extra_headers=headers
            )
            for turn in range(4)
        ]
        homes[session] = {port_of(raw) for raw in raws}
    assert [len(ports) for ports in homes.values()] == [1] * SESSIONS
    assert len(set.union(*homes.values())) > 1


def test_prompt_cache_key_keeps_a_session_on_one_replica(gpt: sdks.openai.OpenAI) -> None:
    homes = set()
    for session in range(SESSIONS):
        key = f"session {session}"
        chats = [
            gpt.chat.completions.with_raw_response.create(
                **asked(f"question {turn}"), prompt_cache_key=key
            )
            for turn in range(3)
        ]
        response = gpt.responses.with_raw_response.create(
            model=MODEL, input="another api", prompt_cache_key=key
        )
        (home,) = {port_of(raw) for raw in (*chats, response)}
        homes.add(home)
    assert len(homes) > 1


def test_anthropics_metadata_keeps_a_session_on_one_replica(
    sonnet: sdks.anthropic.Anthropic,
) -> None:
    homes = set()
    for session in range(SESSIONS):
        metadata: Any = {"user_id": f"session {session}"}
        raws = [
            sonnet.messages.with_raw_response.create(
                model=MODEL, max_tokens=2, messages=user(f"question {turn}"), metadata=metadata
            )
            for turn in range(4)
        ]
        (home,) = {port_of(raw) for raw in raws}
        homes.add(home)
    assert len(homes) > 1


def test_request_without_a_session_is_routed_by_its_prompt(gpt: sdks.openai.OpenAI) -> None:
    first, second = (
        port_of(gpt.chat.completions.with_raw_response.create(**asked("a prompt of its own")))
        for _ in range(2)
    )
    assert first == second
