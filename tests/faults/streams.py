"""Clients that stream without a pause, and compare every byte that they receive."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from extproc.lab.stand_ins import openai_shapes, tokens
from extproc.lab.stand_ins.openai_requests import chat_request
from tests.e2e.scene import CHAT, MODEL, Json, Scene, chat
from tests.extent import extent

CLIENTS = extent(40, full=200)
PACE = ("--time-scale", "1", "--max-num-seqs", "1000", "--kv-tokens", "1000000")
"""Arguments of replicas that spend 50 ms on a token, so the streams leave a core idle."""

WHOLE = "whole"

_FIRST = re.compile(rb'"id": "chatcmpl-stand-in-(\d+)".*?"created": (\d+)')


@dataclass
class Streams:
    """The outcomes of streams."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_begin: float = 0.0
    """The longest wait for response headers, in seconds."""

    @property
    def whole(self) -> int:
        """Number of streams of which every byte arrived."""
        return self.outcomes[WHOLE]

    @property
    def cut(self) -> int:
        """Number of streams with status 200 whose body differs from the expected one."""
        return sum(n for outcome, n in self.outcomes.items() if outcome.startswith("cut"))

    @property
    def failed(self) -> int:
        """Number of streams with another status, or without a response."""
        return self.outcomes.total() - self.whole - self.cut

    async def one(
        self, scene: Scene, request: Json, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a request, and read its streamed response to the end."""
        began = time.monotonic()
        body = json.dumps({**request, "stream": True}).encode()
        try:
            async with scene.session.post(CHAT, data=body, headers=headers) as response:
                self.slowest_begin = max(self.slowest_begin, time.monotonic() - began)
                received = await _read_body(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
            return
        self.note(response.status, received, body)

    def note(self, status: int, received: bytes, body: bytes) -> None:
        """Count the response to this request body, as far as it arrived."""
        self.outcomes[_judge(status, received, body)] += 1


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, or the part that arrived before it broke off."""
    received = bytearray()
    try:
        async for piece in response.content.iter_any():
            received += piece
    except aiohttp.ClientPayloadError:
        pass
    return bytes(received)


def _judge(status: int, received: bytes, body: bytes) -> str:
    if status != 200:
        return f"status {status}"
    return WHOLE if received == expected(received, body) else f"cut after {len(received)} bytes"


def expected(received: bytes, body: bytes) -> bytes | None:
    """Return the stand-in's response to this body; None if its number has not arrived."""
    found = _FIRST.search(received)
    if found is None:
        return None
    request = chat_request(body)
    answer = openai_shapes.CompletionResponse(
        True, request.model or MODEL, int(found[1]), int(found[2])
    )
    words = tokens.answer(request.prompt, request.max_tokens)
    return answer.opening() + answer.token_chunks(words, last=True) + openai_shapes.DONE


@asynccontextmanager
async def streaming(
    scene: Scene,
    clients: int = CLIENTS,
    length: int = 20,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Streams]:
    """Run clients that stream one chat after the other; every stream runs to its own end."""
    streams, stop = Streams(), asyncio.Event()

    async def client(name: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            # Lengths differ, so some streams are always beginning and some are always ending.
            request = chat(
                f"client {name}, turn {turn}", tokens=length // 2 + (name + turn) % length
            )
            await streams.one(scene, request, headers)

    tasks = [asyncio.create_task(client(name)) for name in range(clients)]
    try:
        await asyncio.sleep(0.5)
        yield streams
    finally:
        stop.set()
        await asyncio.gather(*tasks)
