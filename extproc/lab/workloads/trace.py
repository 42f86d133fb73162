"""Replays a trace in Mooncake's format: times of requests and their shared blocks."""

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
"""Tokens of a hash id's block. A prompt's last block may be shorter."""


class _Row(BaseModel):
    """A request."""

    model_config = ConfigDict(strict=True)

    timestamp: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Milliseconds since the start."""

    input_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    """Tokens of the response."""

    hash_ids: list[int]
    """Ids of the prompt's blocks. Equal ids mean equal prompts up to there."""

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
    """Return each request of the trace at its time; `pace` 2 replays it in half the time.

    It is made for the conversation trace of the Mooncake project (FAST '25): 12,031 requests in 59
    minutes, 3.4 a second, with 12.0k prompt tokens on average and 126,195 at most, and 343 output
    tokens. 36.6 % of their blocks repeat earlier ones.

    Eight L4s cannot replay it as recorded. Its 41k prompt tokens a second are more than the 34k
    that they prefill (at least 26k of them are new), and some 300 requests need more than the 68k
    tokens of an L4's cache. Without these requests, a `pace` of 0.2 fits: two or three concurrent
    requests then fill half of each cache. So it needs a profile that holds the longest request,
    126,527 tokens with its response; the default pace is the recorded one.

    Blocks that all requests begin with (one block in that trace) count as the system prompt, and
    the rest as the user's, so that a hash of the first user message differs between requests.

    Raises WorkloadError with the number of each line in another format.
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
    """Return the number of blocks that all prompts begin with. Each prompt keeps one of its own."""

    def same(blocks: Iterable[int]) -> bool:
        return len(set(blocks)) == 1

    alike = sum(1 for _ in takewhile(same, zip(*prompts, strict=False)))
    return min(alike, min(map(len, prompts)) - 1)
