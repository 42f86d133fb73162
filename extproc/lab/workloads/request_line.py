"""A request as written by a source that can log more than Envoy does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import xxhash
from pydantic import BaseModel, ConfigDict, Field, model_validator

from extproc.lab.workloads.recorded import MOST_TOKENS, Recorded, Seconds, prompt_of
from extproc.lab.workloads.text import CHARACTERS_PER_TOKEN
from extproc.lab.workloads.workload import Segment, Turn

_BLOCK_TOKENS = 16


class RequestLine(BaseModel):
    """A line of such a file. Unknown keys are errors."""

    model_config = ConfigDict(strict=True, extra="forbid")

    time: Seconds
    model: Annotated[str, Field(min_length=1)]
    output_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    prompt: Annotated[str, Field(min_length=1)] | None = None
    prefix_hashes: Annotated[list[int | str], Field(min_length=1)] | None = None
    block_tokens: Annotated[int, Field(ge=1)] = _BLOCK_TOKENS
    prompt_tokens: Annotated[int, Field(le=MOST_TOKENS)] | None = None
    adapter: str | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> RequestLine:
        if (self.prompt is None) == (self.prefix_hashes is None):
            raise ValueError("needs prompt or prefix_hashes, and not both")
        sizes = {"block_tokens", "prompt_tokens"} & self.model_fields_set
        if self.prefix_hashes is None and sizes:
            raise ValueError(f"{' and '.join(sorted(sizes))} need prefix_hashes")
        if self.prompt_tokens is not None and self.prefix_hashes is not None:
            whole = (len(self.prefix_hashes) - 1) * self.block_tokens
            if self.prompt_tokens <= whole:
                raise ValueError(
                    f"prompt_tokens {self.prompt_tokens} do not reach into the last of "
                    f"{len(self.prefix_hashes)} blocks of {self.block_tokens}"
                )
        return self

    def request(self, number: int) -> Recorded:
        """Return the request."""
        if self.prompt is not None:
            prompt = prompt_of(_text_blocks(self.prompt))
        else:
            prompt = prompt_of(self._hashed_blocks(number))
        answer = Segment(f"line/{number}/answer", self.output_tokens, "assistant")
        turn = Turn(prompt, answer, self.adapter or "")
        return Recorded(self.time, self.model, "completions", turn)

    def _hashed_blocks(self, number: int) -> Iterator[Segment]:
        hashes = self.prefix_hashes or []
        left = self.prompt_tokens or len(hashes) * self.block_tokens
        for block in hashes:
            yield Segment(f"block/{block}", min(left, self.block_tokens))
            left -= self.block_tokens
        yield Segment(f"line/{number}", left)


def _text_blocks(prompt: str) -> Iterator[Segment]:
    """Name each block by all of the text up to its end, so that equal names mean equal prefixes."""
    size = _BLOCK_TOKENS * CHARACTERS_PER_TOKEN
    digest = xxhash.xxh64()
    for start in range(0, len(prompt), size):
        block = prompt[start : start + size]
        digest.update(block.encode())
        tokens = -(-len(block) // CHARACTERS_PER_TOKEN)
        yield Segment(f"text/{digest.hexdigest()}", tokens)
