"""The bodies of requests: a turn's prompt, with what the model really said before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.lab.workloads.text import CHARACTERS_PER_TOKEN, text
from extproc.lab.workloads.workload import Api, Segment, Session, Turn

_PREPARED_SEGMENTS = 40_000
"""Fewer than `text` remembers."""

_PREPARED_CHARACTERS = 64 * 2**20
"""Of text made before a run; what comes later is made when it is needed."""


@dataclass(frozen=True)
class BodyOptions:
    """What all requests have in common."""

    model: str
    api: Api
    ignore_eos: bool = True
    """Whether answers are made as long as planned, by a field that only vLLM knows."""


def body(turn: Turn, said: Mapping[str, str], style: BodyOptions) -> bytes:
    """The JSON of a request; `said` are the model's own answers, by the names of segments."""
    document: dict[str, Any] = {
        "model": turn.adapter or style.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": turn.output.tokens,
        "temperature": 0,
    }
    if style.ignore_eos:
        document["ignore_eos"] = True
    contents = [_content(segment, said) for segment in turn.prompt]
    if style.api == "completions":
        document["prompt"] = "".join(contents)
    else:
        document["messages"] = [
            {"role": segment.role, "content": content}
            for segment, content in zip(turn.prompt, contents, strict=True)
        ]
    return json.dumps(document).encode()


def _content(segment: Segment, said: Mapping[str, str]) -> str:
    answer = said.get(segment.name)
    if answer is None:
        return text(segment)
    return answer


def quoted_later(turns: Sequence[Turn]) -> frozenset[str]:
    """The names of answers that later prompts of the same session begin with."""
    answers = {turn.output.name for turn in turns}
    return frozenset(
        segment.name for turn in turns[1:] for segment in turn.prompt if segment.name in answers
    )


def prepare(sessions: Iterable[Session]) -> None:
    """Makes texts beforehand, in the order of their use, so that the run need not wait for them."""
    seen: set[tuple[str, int]] = set()
    characters = 0
    for session in sessions:
        quoted = quoted_later(session.turns)
        for turn in session.turns:
            for segment in turn.prompt:
                key = (segment.name, segment.tokens)
                if key in seen or segment.name in quoted:
                    continue
                seen.add(key)
                characters += CHARACTERS_PER_TOKEN * segment.tokens
                if len(seen) > _PREPARED_SEGMENTS or characters > _PREPARED_CHARACTERS:
                    return
                text(segment)
