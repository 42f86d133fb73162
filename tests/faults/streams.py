"""Clients that stream without a pause, and compare every byte of what they get."""

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
"""Of replicas on which so many streams leave a core for all the others: a token takes 50 ms."""

WHOLE = "whole"

_FIRST = re.compile(rb'"id": "chatcmpl-stand-in-(\d+)".*?"created": (\d+)')


@dataclass
class Streams:
    """How streams ended."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_begin: float = 0.0
    """Seconds to the headers of an answer, at the most."""

    @property
    def whole(self) -> int:
        """Every byte of them arrived."""
        return self.outcomes[WHOLE]

    @property
    def cut(self) -> int:
        """They began well, and are not what was to come."""
        return sum(n for how, n in self.outcomes.items() if how.startswith("cut"))

    @property
    def failed(self) -> int:
        """They were answered otherwise, or not at all."""
        return self.outcomes.total() - self.whole - self.cut

    async def one(
        self, scene: Scene, asked: Json, headers: Mapping[str, str] | None = None
    ) -> None:
        """Streams an answer to its end."""
        began = time.monotonic()
        body = json.dumps({**asked, "stream": True}).encode()
        try:
            async with scene.session.post(CHAT, data=body, headers=headers) as response:
                self.slowest_begin = max(self.slowest_begin, time.monotonic() - began)
                received = await _rest(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
            return
        self.note(response.status, received, body)

    def note(self, status: int, received: bytes, body: bytes) -> None:
        """Counts an answer to this body, as far as it came."""
        self.outcomes[_judge(status, received, body)] += 1


async def _rest(response: aiohttp.ClientResponse) -> bytes:
    """What comes of a body; not its end, where it breaks off."""
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
    """What a stand-in streams to this body; None where nothing came that shows its number."""
    found = _FIRST.search(received)
    if found is None:
        return None
    asked = chat_request(body)
    answer = openai_shapes.CompletionResponse(
        True, asked.model or MODEL, int(found[1]), int(found[2])
    )
    words = tokens.answer(asked.prompt, asked.max_tokens)
    return answer.opening() + answer.token_chunks(words, last=True) + openai_shapes.DONE


@asynccontextmanager
async def streaming(
    scene: Scene,
    clients: int = CLIENTS,
    length: int = 20,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Streams]:
    """Clients that stream one chat after the other meanwhile; all streams end by themselves."""
    streams, stop = Streams(), asyncio.Event()

    async def client(name: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            # Of different lengths, so that there are always some that begin and some that end.
            asked = chat(f"client {name}, turn {turn}", tokens=length // 2 + (name + turn) % length)
            await streams.one(scene, asked, headers)

    tasks = [asyncio.create_task(client(name)) for name in range(clients)]
    try:
        await asyncio.sleep(0.5)
        yield streams
    finally:
        stop.set()
        await asyncio.gather(*tasks)
