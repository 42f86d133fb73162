"""The order, concurrency and times of sessions, and responses in later prompts."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from extproc.lab.load import sessions
from extproc.lab.load.bodies import BodyOptions, body, prepare, quoted_later
from extproc.lab.load.pool import Pool
from extproc.lab.load.records import Records
from extproc.lab.load.sessions import Driver
from extproc.lab.load.shares import RequestOptions, plan
from extproc.lab.load.target import Target
from extproc.lab.workloads import text as texts
from extproc.lab.workloads.text import text
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload, conversation
from tests.extent import PATIENCE

if TYPE_CHECKING:
    from tests.lab.load.conftest import Serve, Server

SYSTEM = Segment("system", 6, "system")


def talk(name: str, turns: int = 3, start: float = 0.0) -> Session:
    return Session(conversation(name, [SYSTEM], [5] * turns, [4] * turns), start)


class Model:
    """A model that generates a new text for each request, in two chunks and after a delay."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.said = 0
        self.running = 0
        self.most = 0
        self.refuse: set[int] = set()

    async def respond(self, _: bytes, writer: asyncio.StreamWriter) -> None:
        self.said += 1
        number = self.said
        if number in self.refuse:
            writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")
            return
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        chunks = [{"choices": [{"delta": {"content": f"{part}{number} "}}]} for part in "ab"]
        events = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: "
        writer.write(f"{head}{len(events)}\r\n\r\n{events}".encode())


async def drive(server: Server, workload: Workload) -> Records:
    target = Target(False, "127.0.0.1", server.port, addresses=("127.0.0.1",))
    options = RequestOptions(target, BodyOptions("base", workload.api))
    (share,) = plan(workload, 0, 1, options).shares
    pool = Pool(options)
    driver = Driver(share.phases[-1], options.style, pool, monotonic())
    async with asyncio.timeout(PATIENCE):
        await driver.run()
    pool.close()
    assert driver.in_flight == 0
    return driver.records


def prompts(server: Server) -> list[list[str]]:
    bodies = [json.loads(body) for body in server.bodies]
    return [[message["content"] for message in one["messages"]] for one in bodies]


async def test_responses_are_added_to_later_prompts(serve: Serve) -> None:
    server = await serve(Model().respond)
    records = await drive(server, Workload("w", [talk("s")]))
    first = [text(SYSTEM), text(Segment("s/0", 5))]
    second = [*first, "a1 b1 ", text(Segment("s/1", 5))]
    third = [*second, "a2 b2 ", text(Segment("s/2", 5))]
    assert prompts(server) == [first, second, third]
    assert (records.succeeded, records.failed, records.counted_as_chunks) == (3, 0, 3)


async def test_planned_response_replaces_a_failed_one(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PAUSE_SECONDS", 0.2)
    model = Model()
    model.refuse = {1}
    server = await serve(model.respond)
    records = await drive(server, Workload("w", [talk("s")]))
    planned = text(Segment("s/0/answer", 4))
    assert prompts(server)[1][2] == planned
    assert prompts(server)[2][2:5] == [planned, text(Segment("s/1", 5)), "a2 b2 "]
    assert records.failures == {"HTTP 503": (1, "")}
    sent = records.columns["sent"]
    assert sent[1] - sent[0] > 0.2, "who was refused does not come back at once"


async def test_slots_limit_concurrent_sessions(serve: Serve) -> None:
    model = Model(0.02)
    server = await serve(model.respond)
    work = Workload("w", [talk(f"s{n}", 2) for n in range(9)], concurrency=3)
    records = await drive(server, work)
    assert model.most == 3
    assert records.succeeded == 18
    wanted, sent = records.columns["wanted"], records.columns["sent"]
    assert min(wanted) == 0
    assert max(map(float.__sub__, sent, wanted)) < 0.07, "due when there is a place, not before"


async def test_sessions_begin_at_their_start(serve: Serve) -> None:
    server = await serve(Model().respond)
    work = Workload("w", [talk(f"s{n}", 1, start=n * 0.1) for n in range(4)])
    records = await drive(server, work)
    assert list(records.columns["wanted"]) == pytest.approx([0, 0.1, 0.2, 0.3], abs=1e-6)
    for wanted, sent in zip(records.columns["wanted"], records.columns["sent"], strict=True):
        assert wanted <= sent < wanted + 0.5


async def test_turns_wait_for_the_think_time(serve: Serve) -> None:
    server = await serve(Model().respond)
    turns = [turn._replace(think_seconds=0.15) for turn in talk("s", 2).turns]
    records = await drive(server, Workload("w", [Session(turns)]))
    wanted, last = records.columns["wanted"], records.columns["last"]
    assert wanted[0] == pytest.approx(0, abs=1e-6), "the first turn has no think time"
    assert wanted[1] - last[0] == pytest.approx(0.15, abs=1e-6)
    assert records.columns["sent"][1] >= wanted[1]


def test_bodies_have_the_fields_of_vllm() -> None:
    turn = Turn((SYSTEM, Segment("q", 2)), Segment("a", 7, "assistant"), adapter="sql")
    found: dict[str, Any] = json.loads(body(turn, {}, BodyOptions("base", "chat")))
    messages = found.pop("messages")
    assert found == {
        "model": "sql",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "temperature": 0,
        "ignore_eos": True,
    }
    assert messages == texts.document("chat", turn.prompt)["messages"]
    plain = json.loads(
        body(turn._replace(adapter=""), {}, BodyOptions("base", "completions", False))
    )
    assert plain["model"] == "base"
    assert "ignore_eos" not in plain
    assert plain["prompt"] == texts.document("completions", turn.prompt)["prompt"]


def test_responses_may_contain_any_text() -> None:
    turns = talk("s", 2).turns
    said = {"s/0/answer": 'ü"\\\n'}
    assert (
        json.loads(body(turns[1], said, BodyOptions("m", "chat")))["messages"][2]["content"]
        == 'ü"\\\n'
    )


def test_only_quoted_responses_are_kept() -> None:
    assert quoted_later(talk("s", 3).turns) == {"s/0/answer", "s/1/answer"}
    assert quoted_later(talk("s", 1).turns) == frozenset()


def test_texts_are_prepared_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Segment] = []
    monkeypatch.setattr("extproc.lab.load.bodies.text", made.append)
    prepare([talk("a", 2), talk("b", 2)])
    names = [segment.name for segment in made]
    assert names == ["system", "a/0", "a/1", "b/0", "b/1"], "answers will be the model's own"
    made.clear()
    monkeypatch.setattr("extproc.lab.load.bodies._PREPARED_SEGMENTS", 3)
    prepare([talk("a", 2), talk("b", 2)])
    assert len(made) == 3
