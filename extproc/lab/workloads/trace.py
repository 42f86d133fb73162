"""Replays a trace in Mooncake's format: when requests came, and which blocks they share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from extproc.lab.workloads.jsonl import read
from extproc.lab.workloads.recorded import MOST_TOKENS
from extproc.lab.workloads.workload import Role, Segment, Session, Turn, Workload

BLOCK_TOKENS = 512
"""What a hash id stands for; a prompt's last one for what is left of it."""


class _Row(BaseModel):
    """A request."""

    model_config = ConfigDict(strict=True)

    timestamp: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Milliseconds from the beginning."""

    input_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    """Tokens."""

    hash_ids: list[int]
    """Of the prompt's blocks. Equal ids: equal prompts up to there."""

    @model_validator(mode="after")
    def _covered(self) -> _Row:
        blocks = -(-self.input_length // BLOCK_TOKENS)
        if blocks != len(self.hash_ids):
            raise ValueError(
                f"input_length {self.input_length} makes {blocks} blocks of {BLOCK_TOKENS} "
                f"tokens, but there are {len(self.hash_ids)} hash_ids"
            )
        return self


def mooncake(path: Path, pace: float = 1.0) -> Workload:
    """Each request of the trace at its time; `pace` 2 replays it in half the time.

    Made for the conversation trace that the Mooncake project released (FAST '25): 12,031 requests
    in 59 minutes, 3.4 a second, of 12.0k tokens on average and 126,195 at most, and 343 tokens
    out; of their blocks 36.6 % have been there before.

    Eight L4s cannot replay it as recorded: its 41k prompt tokens a second are more than the 34k
    that they prefill (26k of them are new at best), and some 300 requests need more than the 68k
    tokens of an L4's cache. Apart from these, a `pace` of 0.2 is what fits: two or three requests
    at a time then fill half of each cache. So the profile it is meant for is one that holds the
    longest request, 126,527 tokens with its answer, and the default pace is the
    recorded one.

    What all requests begin with (one block in that trace) is taken for the system prompt,
    and the rest for the user's, so that a hash of the first message of the user tells them apart.

    Raises WorkloadError with the number of each line that is none of this format.
    """
    rows = read(path, lambda _, content: _Row.model_validate(content))
    rows.sort(key=lambda row: row.timestamp)
    system = _common([row.hash_ids for row in rows])
    begin = rows[0].timestamp
    return Workload(
        name="mooncake",
        sessions=[
            Session((_turn(number, row, system),), (row.timestamp - begin) / 1_000 / pace)
            for number, row in enumerate(rows)
        ],
        profile="h100-llama-3.1-8b",
    )


def _turn(number: int, row: _Row, system: int) -> Turn:
    left = row.input_length
    prompt: list[Segment] = []
    for place, block in enumerate(row.hash_ids):
        role: Role = "system" if place < system else "user"
        prompt.append(Segment(f"block/{block}", min(left, BLOCK_TOKENS), role))
        left -= BLOCK_TOKENS
    return Turn(tuple(prompt), Segment(f"answer/{number}", row.output_length, "assistant"))


def _common(prompts: list[list[int]]) -> int:
    """How many blocks all prompts begin with; each has one left of its own."""

    def same(blocks: Iterable[int]) -> bool:
        return len(set(blocks)) == 1

    alike = sum(1 for _ in takewhile(same, zip(*prompts, strict=False)))
    return min(alike, min(map(len, prompts)) - 1)
