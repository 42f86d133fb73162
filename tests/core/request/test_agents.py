"""Requests of coding agents (as of 2026), turn by turn, over eight endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.core.conversation.request import Request
from extproc.core.routing.router import Router
from tests.core.builders import model_spec, router

ENDPOINTS = [f"10.0.0.{number}:8000" for number in range(8)]
SESSIONS = 12
TURNS = 6
RULES = "You are Claude Code. Use the tools that you have. " * 200
REMINDER = "<system-reminder>As you answer, you may use this context: the code is in Python." * 4


def turn(session: int, number: int, *, billed: bool) -> bytes:
    """Return a request of Claude Code. All sessions have the same system prompt."""
    system = [{"type": "text", "text": RULES}]
    if billed:
        line = f"x-anthropic-billing-header: cc_version=2.1.37.3a3; cch={session:02x}{number:03x};"
        system.insert(0, {"type": "text", "text": line})
    messages: list[dict[str, Any]] = []
    for position in range(number + 1):
        text = f"{REMINDER} Session {session}, question {position}: " + f"why {session}? " * 200
        messages.append({"role": "user", "content": text})
        messages.append(
            {"role": "assistant", "content": f"Because of {session}, {position}. " * 100}
        )
    document = {"model": "llama", "system": system, "messages": messages[:-1], "max_tokens": 100}
    return json.dumps(document).encode()


def stays(serving: Router, *, billed: bool, **headers: str) -> tuple[int, float]:
    """Return the number of turns on the same endpoint as the previous one, and their mean hit."""
    homes: dict[int, str] = {}
    stayed, hits = 0, 0.0
    for number in range(TURNS):
        for session in range(SESSIONS):
            raw = {
                name.replace("_", "-"): f"{value} {session}".encode()
                for name, value in headers.items()
            }
            request = Request(serving, headers=raw)
            resolved = request.resolve(turn(session, number, billed=billed), complete=True)
            decision = serving.decide(resolved)
            decision.lease.release()
            if number:
                stayed += decision.address == homes[session]
                hits += decision.prediction.hit if decision.prediction else 0.0
            homes[session] = decision.address
    return stayed, hits / (SESSIONS * (TURNS - 1))


@pytest.mark.parametrize("billed", [False, True])
def test_turns_of_claude_code_stay_on_the_endpoint_with_the_cached_prompt(billed: bool) -> None:
    """Its billing block changes with each request, and engines remove it from the prompt."""
    serving = router(model_spec(strategy="PrefixCache", endpoints=ENDPOINTS))
    stayed, hit = stays(serving, billed=billed)
    assert stayed == SESSIONS * (TURNS - 1)
    assert hit > 0.7


@pytest.mark.parametrize("source", ["PromptHead", "SystemAndFirstUserMessage"])
def test_turns_keep_their_key_with_every_source_that_includes_the_system_prompt(
    source: str,
) -> None:
    for billed in (False, True):
        spec = model_spec(endpoints=ENDPOINTS, prefixSource=source, prefixCharLength=11_000)
        assert stays(router(spec), billed=billed)[0] == SESSIONS * (TURNS - 1)


def test_sessions_with_the_same_first_message_have_different_keys() -> None:
    """Without the id, all sessions have the key of the reminder that they start with."""

    def homes(source: str) -> set[str]:
        serving = router(model_spec(endpoints=ENDPOINTS, prefixSource=source))
        found = set()
        for session in range(SESSIONS):
            headers = {"x-claude-code-session-id": f"session {session}".encode()}
            resolved = Request(serving, headers=headers).resolve(
                turn(session, 0, billed=True), complete=True
            )
            decision = serving.decide(resolved)
            decision.lease.release()
            found.add(decision.address)
        return found

    assert len(homes("FirstUserMessage")) == 1
    assert len(homes("Session")) > 4


@pytest.mark.parametrize("strategy", ["PrefixHash", "PrefixCache"])
def test_turns_of_a_session_stay_on_one_endpoint(strategy: str) -> None:
    spec = model_spec(strategy=strategy, endpoints=ENDPOINTS, prefixSource="Session")
    stayed, _ = stays(router(spec), billed=True, x_claude_code_session_id="session")
    assert stayed == SESSIONS * (TURNS - 1)
