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
"""An answer whose head came before this share of its duration was streamed: where it
is not, vLLM sends the head with the body."""


@dataclass(frozen=True)
class Assumptions:
    """What Envoy's access log does not say."""

    agreement: float = 1.0
    """How far prompts of one prefix hash agree, as a share of the shorter one. The log shows that
    their first `prefix_characters` do, and nothing of the rest. 1: the shorter is the
    beginning of the longer, as the turns of a conversation are; so the reuse is the most
    that there can have been. 0: they have the hashed prefix in common and no more, as documents
    under one instruction do; the least. Simulate both. Whichever it is, an answer is never found
    again in a later prompt, and system prompts that the hash leaves out are shared with nobody."""

    prefix_characters: int = 100
    """That were hashed: `prefixCharLength` of the model, which the log does not repeat."""

    chunk_bytes: int = 240
    """Bytes of the answer per token, if it was streamed: one event each, by vLLM's chat API."""

    envelope_bytes: int = 450
    """Bytes of the answer that are no text, if it was not streamed."""


class EnvoyLine(BaseModel):
    """A line of Envoy's access log; what Envoy does not know is null or missing."""

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
        """None where there is nothing to replay."""
        route = match(self.path or "")
        # 0: the client left before it was answered; the replica had work nevertheless.
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
