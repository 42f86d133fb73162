"""Multi-turn chat traffic: many users, a few shared system prompts, answers appended.

Closed loop: each user sends the next message when the answer to the last is
complete, as people and agents do, so a slow fleet is asked less, not more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Any

import aiohttp

_SYLLABLES = ("ba", "den", "fir", "go", "har", "ko", "lum", "ne", "pol", "ris", "ta", "vo", "zu")


@dataclass(frozen=True)
class Workload:
    """How many users say how much."""

    users: int = 120
    turns: int = 7
    system_prompts: int = 6
    system_words: int = 700
    """Of each system prompt; a word is about 1.7 tokens of the stand-in's."""
    message_words: int = 240
    answer_tokens: int = 36
    ramp_seconds: float = 2.0
    """Over which the users arrive."""
    seed: int = 7

    @property
    def requests(self) -> int:
        """In all."""
        return self.users * self.turns


@dataclass(frozen=True)
class Outcome:
    """One request as its client saw it; times in seconds on the wall clock."""

    status: int
    ttft: float
    total: float
    tokens: int


@dataclass(frozen=True)
class Run:
    """All requests of a workload and how long they took."""

    outcomes: list[Outcome]
    seconds: float

    def failed(self) -> int:
        """Requests that got no whole answer."""
        return sum(outcome.status != 200 for outcome in self.outcomes)

    def ttfts(self) -> list[float]:
        """Times to first token, in order of size."""
        return sorted(outcome.ttft for outcome in self.outcomes if outcome.status == 200)

    def tokens(self) -> int:
        """Generated in all."""
        return sum(outcome.tokens for outcome in self.outcomes)


async def drive(
    url: str, model: str, workload: Workload, progress: Callable[[], None] = lambda: None
) -> Run:
    """Runs a workload against an OpenAI-compatible server; `progress` is called per request."""
    rng = Random(workload.seed)
    prompts = [_text(rng, workload.system_words) for _ in range(workload.system_prompts)]
    outcomes: list[Outcome] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:

        async def user(number: int) -> None:
            own = Random(workload.seed * 100_003 + number)
            await asyncio.sleep(own.random() * workload.ramp_seconds)
            messages = [{"role": "system", "content": own.choice(prompts)}]
            for turn in range(workload.turns):
                opening = f"I am user {number}, this is question {turn + 1}: "
                content = opening + _text(own, workload.message_words)
                messages.append({"role": "user", "content": content})
                body = {"model": model, "max_tokens": workload.answer_tokens, "messages": messages}
                outcome, answer = await _ask(session, {**body, "stream": True})
                messages.append({"role": "assistant", "content": answer})
                outcomes.append(outcome)
                progress()

        started = perf_counter()
        await asyncio.gather(*(user(number) for number in range(workload.users)))
        return Run(outcomes, perf_counter() - started)


async def _ask(session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[Outcome, str]:
    """One streamed request: how it went, and the answer's text."""
    started = perf_counter()
    first = 0.0
    received = bytearray()
    try:
        async with session.post("/v1/chat/completions", json=body) as response:
            status = response.status
            async for chunk in response.content.iter_any():
                received += chunk
                if not first and b'"content":' in received:
                    first = perf_counter()
    except aiohttp.ClientError:
        return Outcome(0, 0, perf_counter() - started, 0), ""
    texts = list(_deltas(bytes(received))) if status == 200 else []
    whole = status == 200 and received.endswith(b"data: [DONE]\n\n") and texts
    outcome = Outcome(
        200 if whole else status if status != 200 else 0,
        first - started,
        perf_counter() - started,
        len(texts),
    )
    return outcome, "".join(texts)


def _deltas(stream: bytes) -> Iterator[str]:
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            text = choices[0]["delta"].get("content") if choices else None
            if text:
                yield text


def _text(rng: Random, words: int) -> str:
    return " ".join("".join(rng.choices(_SYLLABLES, k=3)) for _ in range(words))
