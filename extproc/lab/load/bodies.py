"""The bodies of requests: the prompt of a turn, with the model's own earlier responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.lab.workloads.text import CHARACTERS_PER_TOKEN, text
from extproc.lab.workloads.workload import Api, Segment, Session, Turn

_PREPARED_SEGMENTS = 40_000
"""Most segments prepared before a run; fewer than the cache of `text` holds."""

_PREPARED_CHARACTERS = 64 * 2**20
"""Most characters prepared before a run; later text is made when it is needed."""


@dataclass(frozen=True)
class BodyOptions:
    """The fields that all requests share."""

    model: str
    api: Api
    ignore_eos: bool = True
    """True to send vLLM's field `ignore_eos`, so that responses have the planned length."""


def body(turn: Turn, said: Mapping[str, str], style: BodyOptions) -> bytes:
    """Return the JSON of a request; `said` has the model's own responses by segment name."""
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
    """Return the names of responses that later prompts of the session contain."""
    answers = {turn.output.name for turn in turns}
    return frozenset(
        segment.name for turn in turns[1:] for segment in turn.prompt if segment.name in answers
    )


def prepare(sessions: Iterable[Session]) -> None:
    """Make texts before the run, in the order of their use, so that it does not wait for them."""
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
