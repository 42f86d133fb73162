"""Multi-turn chat traffic: many users, a few shared system prompts, growing conversations.

Closed loop: each user sends the next message after the whole response, as people and agents do. So
a slow fleet gets fewer requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import Any

import aiohttp

_SYLLABLES = ("ba", "den", "fir", "go", "har", "ko", "lum", "ne", "pol", "ris", "ta", "vo", "zu")


@dataclass(frozen=True)
class Workload:
    """Number of users and size of their messages."""

    users: int = 120
    turns: int = 6
    system_prompts: int = 6
    system_words: int = 700
    """Words of each system prompt; a word is about 1.7 tokens of the stand-in's."""
    message_words: int = 240
    answer_tokens: int = 36
    ramp_seconds: float = 2.0
    """Seconds over which the users arrive."""
    seed: int = 7

    @property
    def requests(self) -> int:
        """Total number of requests."""
        return self.users * self.turns


@dataclass(frozen=True)
class Outcome:
    """One request as its client saw it; times in wall-clock seconds."""

    status: int
    ttft: float
    total: float
    tokens: int
    sent: float = 0.0
    """Time of sending, in seconds since the start of the run."""
    replica: str = ""
    """Port of the replica that responded; empty if unknown."""
    prompt_tokens: int = 0
    cached_tokens: int = -1
    """Tokens of the prompt that were in the replica's cache; -1 if unknown."""


@dataclass(frozen=True)
class Run:
    """All requests of a workload and their duration."""

    outcomes: list[Outcome]
    seconds: float

    def failed(self) -> int:
        """Return the number of requests without a complete response."""
        return sum(outcome.status != 200 for outcome in self.outcomes)

    def ttfts(self) -> list[float]:
        """Return the times to first token, sorted."""
        return sorted(outcome.ttft for outcome in self.outcomes if outcome.status == 200)

    def tokens(self) -> int:
        """Return the number of generated tokens of all requests."""
        return sum(outcome.tokens for outcome in self.outcomes)


async def drive(
    urls: Sequence[str], model: str, workload: Workload, progress: Callable[[], None] = lambda: None
) -> Run:
    """Run a workload against OpenAI-compatible servers; each request goes to a random one.

    `progress` is called for each request.
    """
    rng = Random(workload.seed)
    prompts = [_text(rng, workload.system_words) for _ in range(workload.system_prompts)]
    outcomes: list[Outcome] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def user(number: int) -> None:
            own = Random(workload.seed * 100_003 + number)
            await asyncio.sleep(own.random() * workload.ramp_seconds)
            messages = [{"role": "system", "content": own.choice(prompts)}]
            for turn in range(workload.turns):
                opening = f"I am user {number}, this is question {turn + 1}: "
                content = opening + _text(own, workload.message_words)
                messages.append({"role": "user", "content": content})
                body = {
                    "model": model,
                    "max_tokens": workload.answer_tokens,
                    "messages": messages,
                    "stream_options": {"include_usage": True},
                }
                url = f"{own.choice(urls)}/v1/chat/completions"
                sent = perf_counter() - started
                outcome, answer = await _ask(session, url, {**body, "stream": True})
                outcome = replace(outcome, sent=sent)
                messages.append({"role": "assistant", "content": answer})
                outcomes.append(outcome)
                progress()

        started = perf_counter()
        await asyncio.gather(*(user(number) for number in range(workload.users)))
        return Run(outcomes, perf_counter() - started)


async def _ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> tuple[Outcome, str]:
    """Send a streamed request. Return its outcome and the response's text."""
    started = perf_counter()
    first = 0.0
    received = bytearray()
    try:
        async with session.post(url, json=body) as response:
            status = response.status
            replica = response.headers.get("x-stand-in-port", "")
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
        0.0,
        replica,
        *_usage(bytes(received)),
    )
    return outcome, "".join(texts)


def _usage(stream: bytes) -> tuple[int, int]:
    """Return the prompt's tokens and the cached ones among them, from the last chunk with usage."""
    for line in reversed(stream.split(b"\n")):
        if line.startswith(b"data: {") and b'"usage"' in line:
            usage = json.loads(line[6:]).get("usage")
            if usage:
                details = usage.get("prompt_tokens_details") or {}
                return usage["prompt_tokens"], details.get("cached_tokens", -1)
    return 0, -1


def _deltas(stream: bytes) -> Iterator[str]:
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            text = choices[0]["delta"].get("content") if choices else None
            if text:
                yield text


def _text(rng: Random, words: int) -> str:
    return " ".join("".join(rng.choices(_SYLLABLES, k=3)) for _ in range(words))
