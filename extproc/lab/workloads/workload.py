"""Workloads: sessions of turns, made of segments, with their times.

A *segment* is a named stretch of tokens. Segments with the same name are the same text; a shorter
one is the beginning of a longer one. A prompt is a sequence of segments. Two prompts share a prefix
exactly as far as their segments agree, so the simulation does not need their text. For the hash of
a prefix, or to send to a real engine, `extproc.lab.workloads.text` makes text from the names.

A *turn* is one request and its response. A *session* is a sequence of turns, each sent after the
previous response, as people and agents do. The workload determines the start of sessions: at given
times, at random times with a rate, or as soon as a slot is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Role = Literal["system", "user", "assistant"]
Api = Literal["chat", "completions"]


class Segment(NamedTuple):
    """The first `tokens` of a text."""

    name: str
    """Name of the text."""

    tokens: int
    """Its length, at least one."""

    role: Role = "user"
    """Role of the message's author."""


class Turn(NamedTuple):
    """One request. Its response is a segment too, which later turns may begin with."""

    prompt: tuple[Segment, ...]
    """The whole prompt, including earlier responses."""

    output: Segment
    """The response. Its length is known, as with vLLM's `ignore_eos`."""

    adapter: str = ""
    """The LoRA adapter; if empty, the base model."""

    think_seconds: float = 0.0
    """Seconds between the previous response and this request."""

    tenant: str = ""
    """The tenant that sends it, for flow control."""

    objective: str = ""
    """Its priority class, for flow control."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return sum(segment.tokens for segment in self.prompt)


class Session(NamedTuple):
    """Turns of one client, one after the other."""

    turns: Sequence[Turn]

    start: float = 0.0
    """Seconds since the start of the run; without a free slot it starts later."""

    forks: Sequence[Fork] = ()
    """Sessions that start from one of its turns and run at the same time, such as sub-agents."""


class Fork(NamedTuple):
    """A session that starts when a turn of its parent has its response. It needs no slot."""

    after: int
    """Number of that turn, from 0. If it fails, the fork never starts."""

    session: Session
    is_awaited: bool = True
    """True if the parent's next turn waits until this session ends, well or not."""


def family(session: Session) -> Iterator[Session]:
    """Yield a session, its forks and theirs. This is the order of their requests' numbers."""
    yield session
    for fork in session.forks:
        yield from family(fork.session)


@dataclass(frozen=True)
class Workload:
    """All requests of a run."""

    name: str
    sessions: Sequence[Session]
    """Sessions in the order of their start."""

    concurrency: int | None = None
    """Concurrent sessions; None: no limit."""

    requests_per_second: float | None = None
    """Rate of a client that draws a random pause after starting each session.

    It ignores the sessions' `start`. None: each session starts at its `start`.
    """

    burstiness: float = 1.0
    """Shape of the gamma distribution of these pauses, as vLLM's `--burstiness`.

    The coefficient of variation is 1 over its square root: 1 for Poisson, 3 for 1/9.
    """

    at_once: int = 1
    """Number of sessions that start together; the pauses are longer to keep the rate."""

    api: Api = "chat"
    """Form of the prompts: messages, or one text."""

    replicas: int = 8
    """Number of engines of the intended fleet."""

    profile: str = "l4-llama-3.1-8b-fp8"
    """Profile of the intended engine."""

    sidecars: int = 1
    """Number of sidecars, each with its own counts."""

    single_threaded_client: bool = False
    """True if a client that could not keep up measured the published figures."""

    warm_up: int = 0
    """Number of first sessions that precede the measurement and do not count in its figures."""

    @property
    def is_closed(self) -> bool:
        """True if sessions start only when a slot is free, without times of their own."""
        if self.concurrency is None or self.requests_per_second is not None:
            return False
        return not any(session.start for session in self.sessions)

    @property
    def all_sessions(self) -> list[Session]:
        """Sessions and their forks, in the order of their requests' numbers."""
        return [one for session in self.sessions for one in family(session)]

    @property
    def turns(self) -> Iterator[Turn]:
        """Turns of all sessions and forks, in the order of their requests' numbers."""
        return (turn for session in self.all_sessions for turn in session.turns)

    @property
    def requests(self) -> int:
        """Total number of requests."""
        return sum(len(session.turns) for session in self.all_sessions)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(turn.prompt_tokens for turn in self.turns)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(turn.output.tokens for turn in self.turns)

    @property
    def adapters(self) -> list[str]:
        """Adapters that some request uses."""
        return sorted({turn.adapter for turn in self.turns if turn.adapter})

    @property
    def before(self) -> Workload:
        """The part before the measurement."""
        return replace(self, sessions=self.sessions[: self.warm_up], warm_up=0)

    @property
    def measured(self) -> Workload:
        """The measured part."""
        return replace(self, sessions=self.sessions[self.warm_up :], warm_up=0)


def conversation(
    name: str,
    opening: Sequence[Segment],
    messages: Sequence[int],
    answers: Sequence[int],
    adapter: str = "",
) -> list[Turn]:
    """Return turns that each append a message of so many tokens to the conversation.

    `opening` starts the conversation, such as a system prompt. `name` is the conversation's own.
    """
    segments = list(opening)
    turns = []
    for number, (message, answer) in enumerate(zip(messages, answers, strict=True)):
        segments.append(Segment(f"{name}/{number}", message))
        output = Segment(f"{name}/{number}/answer", answer, "assistant")
        turns.append(Turn(tuple(segments), output, adapter))
        segments.append(output)
    return turns
