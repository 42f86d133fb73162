"""A stand-in server as a process, and HTTP requests to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import aiohttp

from tests.e2e.forked import ForkedFleet

T = TypeVar("T")
Json = dict[str, Any]


class HttpResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event."""
        parts = self.body.decode().split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") for part in parts)
        return [part.removeprefix("data: ") for part in parts]

    @property
    def chunks(self) -> list[Json]:
        assert self.events[-1] == "[DONE]"
        return [json.loads(event) for event in self.events[:-1]]


class Server(NamedTuple):
    ports: list[int]

    def url(self, path: str, replica: int = 0) -> str:
        return f"http://127.0.0.1:{self.ports[replica]}{path}"

    def get(self, path: str, replica: int = 0) -> HttpResponse:
        return run(ask("GET", self.url(path, replica)))

    def post(
        self,
        path: str,
        body: Json | bytes,
        replica: int = 0,
        headers: dict[str, str] | None = None,
    ) -> HttpResponse:
        return run(ask("POST", self.url(path, replica), encoded(body), headers))

    def metric(self, name: str, replica: int = 0) -> float:
        for line in self.get("/metrics", replica).body.decode().splitlines():
            if line.startswith(f"vllm:{name}{{"):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    def requests(self, replica: int = 0) -> dict[str, int]:
        counts: dict[str, int] = self.get("/stand-in/requests", replica).json
        return counts

    def reset(self, replica: int = 0) -> None:
        self.post("/stand-in/reset-cache", b"", replica)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def encoded(body: Json | bytes) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


async def ask(
    method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> HttpResponse:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=body, headers=headers) as response,
    ):
        found = {name.lower(): value for name, value in response.headers.items()}
        return HttpResponse(response.status, found, await response.read())


@contextmanager
def stand_in(*arguments: str) -> Iterator[Server]:
    """Run a stand-in as a fork, which starts faster than the program."""
    with TemporaryDirectory() as directory:
        fleet = ForkedFleet(1, Path(directory), arguments)
        try:
            run(fleet.start())
            yield Server([int(address.rpartition(":")[2]) for address in fleet.addresses])
        finally:
            run(fleet.kill())


@contextmanager
def stand_in_program(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Server]]:
    """Run a stand-in as a program."""
    process = subprocess.Popen(
        [sys.executable, "-m", "extproc.lab.stand_ins.vllm", *arguments], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process, Server(json.loads(process.stdout.readline())["ports"])
    finally:
        process.kill()
        process.communicate()


TIME_SCALE = 50
"""Factor by which the stand-ins of most tests are faster than real time."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG_WORDS = "the quick brown fox jumps over the lazy dog, again and again; " * 20


def chat(*contents: str, **changes: Any) -> Json:
    """Return a chat request; the messages alternate, and the user's is first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"model": "m", "messages": messages, **changes}


def answer_of(answer: HttpResponse) -> str:
    text: str = answer.json["choices"][0]["message"]["content"]
    return text


def cached_tokens(answer: HttpResponse) -> int:
    cached: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached
