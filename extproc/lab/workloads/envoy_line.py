"""A line of Envoy's access log, as the files in envoy/ configure it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from extproc.core.request.paths import Api as Generating
from extproc.core.request.paths import match
from extproc.lab.workloads.recorded import Recorded, Seconds, prompt_of
from extproc.lab.workloads.text import CHARACTERS_PER_TOKEN
from extproc.lab.workloads.workload import Api, Segment, Turn

_Size = Annotated[int, Field(ge=0)]

_STREAMED_BEFORE = 0.9
"""A response was streamed if its head came before this share of its duration.

Otherwise vLLM sends the head together with the body.
"""


@dataclass(frozen=True)
class Assumptions:
    """Values that Envoy's access log does not contain."""

    agreement: float = 1.0
    """Agreement of prompts that share a prefix hash, as a share of the shorter one.

    The log shows that their first `prefix_characters` agree, and nothing about the rest. 1: the
    shorter one is the beginning of the longer one, as the turns of a conversation are; this is the
    highest possible reuse. 0: only the hashed prefix is common, as with documents under one
    instruction; this is the lowest. Simulate both. With both values, later prompts do not contain
    earlier responses, and system prompts that the hash omits are not shared.
    """

    prefix_characters: int = 100
    """Hashed characters: the model's `prefixCharLength`, which the log does not repeat."""

    chunk_bytes: int = 240
    """Bytes of a streamed response per token: one event each, with vLLM's chat API."""

    envelope_bytes: int = 450
    """Bytes of an unstreamed response that are not text."""


class EnvoyLine(BaseModel):
    """A line of Envoy's access log. Unknown values are null or missing."""

    model_config = ConfigDict(strict=True)

    time: Seconds
    bytes_received: _Size
    bytes_sent: _Size
    path: str | None = None
    status: int | None = None
    first_byte_ms: float | None = None
    duration_ms: float | None = None
    model: str | None = None
    adapter: str | None = None
    endpoint: str | None = None
    prefix_hash: str | None = None

    def request(self, number: int, assumed: Assumptions) -> Recorded | None:
        """Return the request; None if there is nothing to replay."""
        route = match(self.path or "")
        # 0: the client left before the response, but the replica worked.
        succeeded = self.status == 0 or self.status in range(200, 300)
        if route is None or route.api is not Generating.GENERATE or not succeeded:
            return None
        if not self.model or not self.endpoint:
            return None
        turn = Turn(
            self._prompt(number, assumed),
            Segment(f"line/{number}/answer", self._output_tokens(assumed), "assistant"),
            self.adapter or "",
        )
        api: Api = "completions" if route.path == "/v1/completions" else "chat"
        return Recorded(self.time, self.model, api, turn)

    def _prompt(self, number: int, assumed: Assumptions) -> tuple[Segment, ...]:
        tokens = max(1, self.bytes_received // CHARACTERS_PER_TOKEN)
        if not self.prefix_hash:
            return (Segment(f"line/{number}", tokens),)
        hashed = min(tokens, -(-assumed.prefix_characters // CHARACTERS_PER_TOKEN))
        shared = hashed + round(assumed.agreement * (tokens - hashed))
        return prompt_of(
            (
                Segment(f"prefix/{self.prefix_hash}", shared),
                Segment(f"line/{number}", tokens - shared),
            )
        )

    def _output_tokens(self, assumed: Assumptions) -> int:
        first, duration = self.first_byte_ms, self.duration_ms
        if first is not None and duration is not None and first < _STREAMED_BEFORE * duration:
            return max(1, self.bytes_sent // assumed.chunk_bytes)
        return max(1, (self.bytes_sent - assumed.envelope_bytes) // CHARACTERS_PER_TOKEN)
