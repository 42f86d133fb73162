"""What clients ask of a fleet, and when: sessions of turns, made of segments.

Theory of operation. A *segment* is a stretch of tokens with a name: segments of one name are the
same text, the shorter being the beginning of the longer. A prompt is a row of segments, so two
prompts share a prefix exactly as far as their rows agree, and nobody needs the text to
know it. Where text is needed, for the hash of a prefix or to send to a real
engine, `extproc.lab.workloads.text` makes it out of the names.

A *turn* is one request and the answer to it. A *session* is a row of turns, each asked when the
one before is answered, as people and agents do. When sessions begin is up to the
workload: at given times, at random ones at a rate, or as soon as there is a free place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Role = Literal["system", "user", "assistant"]
Api = Literal["chat", "completions"]


class Segment(NamedTuple):
    """The first `tokens` of a text."""

    name: str
    """Which text."""

    tokens: int
    """Of it, one at least."""

    role: Role = "user"
    """Whose message it is."""


class Turn(NamedTuple):
    """One request. What it answers is a segment too, which later turns may begin with."""

    prompt: tuple[Segment, ...]
    """All of it, with the answers of earlier turns."""

    output: Segment
    """The answer: its length is known beforehand, as with vLLM's `ignore_eos`."""

    adapter: str = ""
    """The LoRA adapter it is asked of; none: the base model."""

    think_seconds: float = 0.0
    """Between the answer before and this request."""

    @property
    def prompt_tokens(self) -> int:
        """Of the whole prompt."""
        return sum(segment.tokens for segment in self.prompt)


class Session(NamedTuple):
    """Turns of one client, one after the other."""

    turns: Sequence[Turn]

    start: float = 0.0
    """Seconds from the beginning of the run; it starts later where there is no free place."""


@dataclass(frozen=True)
class Workload:
    """Everything that is asked in a run."""

    name: str
    sessions: Sequence[Session]
    """In the order in which they start."""

    concurrency: int | None = None
    """Sessions at a time; None: as many as come."""

    requests_per_second: float | None = None
    """The pace of a client that draws a random pause (Poisson) after each session it has
    started, whatever their `start`. None: each session starts when it says."""

    api: Api = "chat"
    """How prompts are sent: as messages, or as one text."""

    replicas: int = 8
    """The fleet that it is meant for."""

    profile: str = "l4-llama-3.1-8b-fp8"
    """The engine that it is meant for, by the name of its profile."""

    sidecars: int = 1
    """In front of it, each with its own counts."""

    single_threaded_client: bool = False
    """Whether the published figures were measured by a client that could not keep up."""

    warm_up: int = 0
    """Of the sessions so many come before the measurement and are in none of its figures."""

    @property
    def is_closed(self) -> bool:
        """Whether sessions come only when there is a free place, at no time of their own."""
        if self.concurrency is None or self.requests_per_second is not None:
            return False
        return not any(session.start for session in self.sessions)

    @property
    def requests(self) -> int:
        """In all."""
        return sum(len(session.turns) for session in self.sessions)

    @property
    def prompt_tokens(self) -> int:
        """In all."""
        return sum(turn.prompt_tokens for session in self.sessions for turn in session.turns)

    @property
    def output_tokens(self) -> int:
        """In all."""
        return sum(turn.output.tokens for session in self.sessions for turn in session.turns)

    @property
    def adapters(self) -> list[str]:
        """That some request is asked of."""
        turns = (turn for session in self.sessions for turn in session.turns)
        return sorted({turn.adapter for turn in turns if turn.adapter})

    @property
    def before(self) -> Workload:
        """What comes before the measurement."""
        return replace(self, sessions=self.sessions[: self.warm_up], warm_up=0)

    @property
    def measured(self) -> Workload:
        """What is measured."""
        return replace(self, sessions=self.sessions[self.warm_up :], warm_up=0)


def conversation(
    name: str,
    opening: Sequence[Segment],
    messages: Sequence[int],
    answers: Sequence[int],
    adapter: str = "",
) -> list[Turn]:
    """Turns that each append a message of so many tokens to all that was said before.

    `opening` is what the conversation starts with, a system prompt say; `name` is its own.
    """
    said = list(opening)
    turns = []
    for number, (message, answer) in enumerate(zip(messages, answers, strict=True)):
        said.append(Segment(f"{name}/{number}", message))
        output = Segment(f"{name}/{number}/answer", answer, "assistant")
        turns.append(Turn(tuple(said), output, adapter))
        said.append(output)
    return turns
