"""The steps of a decision, for machines and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from extproc.core.request.blocks import BLOCK_BYTES


@dataclass(frozen=True)
class ExplainedCandidate:
    """A candidate in the order of preference."""

    address: str
    inflight: int
    hops: int
    reason: str
    predicted_hit: float | None = None
    """The share of the prompt that is probably in its cache; None without a prediction."""


@dataclass(frozen=True)
class ExplainedPrompt:
    """The prompt as a strategy that compares prompts reads it."""

    bytes: int
    blocks: int
    system_blocks: int
    """Blocks of tools and system prompt."""
    home_by: str
    """The source of the ring key, which decides until a cache has a part of the prompt."""

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        of_system = f", {self.system_blocks} of them tools and system prompt"
        yield (
            f"prompt      {self.bytes:,} bytes; read {self.blocks:,} blocks of {BLOCK_BYTES}"
            f"{of_system if self.system_blocks else ''}"
        )
        yield "index       empty here: no cached blocks are known"
        yield f"home        on the ring by {self.home_by}"


@dataclass(frozen=True)
class ExplainedFlow:
    """Flow control of the request."""

    waits: bool | None
    """True if no endpoint has room, or others wait; None if the limits are not known here."""
    requests: int = 0
    """Requests that wait now."""

    def line(self) -> str:
        """Return the line for people."""
        if self.waits is None:
            return "flow        waits while no endpoint has room; the limits are learned"
        if self.waits:
            return f"flow        waits for room, with {self.requests:,} others; as if it had room:"
        return "flow        an endpoint has room"


@dataclass(frozen=True)
class Explanation:
    """The steps from request to endpoint; `error` if the request would be refused."""

    model: str | None = None
    adapter: str | None = None
    rename: str | None = None
    strategy: str | None = None
    reads_signals: bool = False
    endpoint: str | None = None
    reason: str | None = None
    prefix: str | None = None
    prefix_hash: str | None = None
    session: str | None = None
    """The source of the session id that serves as prefix."""
    prompt: ExplainedPrompt | None = None
    bound: float | None = None
    flow_control: ExplainedFlow | None = None
    """None without flow control."""
    shown_bytes: int = 0
    """Bytes of the body that Envoy shows."""
    body_bytes: int = 0
    candidates: list[ExplainedCandidate] = field(default_factory=list)
    error: dict[str, object] | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the explanation for machines."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        if self.error is not None:
            yield f"refused     {self.error['status']} {self.error['code']}"
            yield f"            {self.error['message']}"
        if self.shown_bytes < self.body_bytes:
            yield f"shown       {self.shown_bytes:,} of {self.body_bytes:,} bytes of the body"
        if self.error is None:
            yield from self._request_lines()
            yield from self._candidate_lines()

    def _request_lines(self) -> Iterator[str]:
        yield f"model       {self.model}"
        yield f"adapter     {self.adapter or '-'}"
        if self.rename is not None:
            yield f"renamed     the body's model becomes {self.rename!r}"
        yield f"strategy    {self.strategy}"
        if self.reads_signals:
            yield "signals     none here: only in-flight requests count"
        yield f"prefix      {self.prefix!r}" if self.prefix else "prefix      - (none)"
        if self.session:
            yield f"session     from {self.session}"
        yield f"hash        {self.prefix_hash or '-'}"
        if self.prompt is not None:
            yield from self.prompt.lines()

    def _candidate_lines(self) -> Iterator[str]:
        if self.flow_control is not None:
            yield self.flow_control.line()
        if self.bound is not None:
            yield f"bound       {self.bound:g} requests in flight"
        yield "candidates  in the order of preference"
        for candidate in self.candidates:
            yield (
                f"            {candidate.address}  in flight {candidate.inflight}  "
                f"hops {candidate.hops}  {candidate.reason}"
            )
        yield f"endpoint    {self.endpoint} ({self.reason})"
