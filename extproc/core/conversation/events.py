"""What Envoy tells a conversation of an HTTP request, and what it is told in return."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

from extproc.core.fleet.outcome import Outcome
from extproc.core.routing.decision import Decision

TARGET_HEADER = "x-target-endpoint"
FALLBACK_HEADER = "x-target-endpoint-fallback"
DESTINATION = "x-gateway-destination-endpoint"
"""The endpoint picker protocol's name for the target."""

ROUTING_HEADERS = (TARGET_HEADER, FALLBACK_HEADER, DESTINATION)
"""Headers that choose an endpoint: only the sidecar may set them."""

CHUNK_LIMIT = 62_000
"""Bytes of a body in one answer at the most: the endpoint picker protocol's measure."""


class Kind(Enum):
    """The parts of an HTTP request and its response that Envoy may show us."""

    __hash__ = object.__hash__  # members are looked up with each message; Enum's own is slow

    REQUEST_HEADERS = auto()
    REQUEST_BODY = auto()
    REQUEST_TRAILERS = auto()
    RESPONSE_HEADERS = auto()
    RESPONSE_BODY = auto()
    RESPONSE_TRAILERS = auto()
    UNKNOWN = auto()
    """A kind of event that this version does not know."""


class BodyMode(Enum):
    """Whether, and in how many pieces, a body will be shown."""

    BUFFERED = auto()
    """One event with the body or its head (BUFFERED, BUFFERED_PARTIAL), or not told."""
    AHEAD = auto()
    """In chunks that come before the headers are answered, and go on with their answers
    (STREAMED, with `send_body_without_waiting_for_header_response`)."""
    NONE = auto()
    DUPLEX = auto()
    """In chunks that we stream back, whenever we like (FULL_DUPLEX_STREAMED)."""
    OTHER = auto()
    """In chunks, after the headers have gone on: too late to choose by the body."""


class Modes(NamedTuple):
    """How the two bodies of a stream will be shown."""

    request: BodyMode = BodyMode.BUFFERED
    response: BodyMode = BodyMode.NONE


class Event(NamedTuple):
    """One message of Envoy."""

    kind: Kind
    headers: Mapping[str, bytes] = MappingProxyType({})
    """Of REQUEST_HEADERS: names in lower case, raw values."""
    body: bytes = b""
    end_of_stream: bool = False
    modes: Modes | None = None
    """Told with the first event of a stream."""
    subset: tuple[str, ...] | None = None
    """The only endpoints the gateway allows, as it wrote them, in REQUEST_HEADERS or the first
    REQUEST_BODY; None: all."""
    served_by: str = ""
    """Of RESPONSE_HEADERS: IP:PORT of the upstream that answered, if Envoy tells. Of Envoy's own
    answers it is the one that was asked last."""
    outcome: Outcome | None = None
    """Of RESPONSE_HEADERS: how it went with that one."""
    attempts: int = 0
    """Of RESPONSE_HEADERS: how often upstreams were tried; 0 where Envoy does not tell."""
    load_report: bytes | None = None
    """Of RESPONSE_HEADERS: what the upstream says there of its load; None without the header."""
    media_type: str = ""
    """In RESPONSE_HEADERS, the body's type without parameters, in lower case. It is empty if the
    body is compressed."""


class Proceed(NamedTuple):
    """Go on, perhaps with another target, other headers or another body."""

    kind: Kind
    target: str = ""
    """Sets `x-target-endpoint`; nothing is changed where empty."""
    reroute: bool = False
    """Look at the routes again, with the target in place."""
    decision: Decision | None = None
    """Published as metadata, with the fallback candidate's header."""
    destination: str = ""
    """Sets `x-gateway-destination-endpoint`, the endpoint picker protocol's target: one address,
    or two with a comma. With a `target` but without a destination that header is removed."""
    requested: str = ""
    """Sets `x-gateway-model-name`: the model as the request calls it; empty while unknown."""
    model: str = ""
    """Sets `x-gateway-base-model-name`: the configured model's name; empty while unknown."""
    set_headers: tuple[tuple[str, str], ...] = ()
    """Further headers, each overwriting what was there."""
    remove_headers: tuple[str, ...] = ()
    body: bytes | None = None
    """In answers to a body, the bytes that replace it. None if it passes unchanged."""
    show_response: bool = False
    """In answers to RESPONSE_HEADERS, asks for the body in pieces, for this request only. Envoy
    does so if `allow_mode_override` is set and no body comes ahead of the headers' answer."""


class Chunk(NamedTuple):
    """A piece of a body, given back as it came (FULL_DUPLEX_STREAMED)."""

    kind: Kind
    body: bytes
    end_of_stream: bool = False


class Immediate(NamedTuple):
    """Answer the client now."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    details: str


Reply = Proceed | Chunk | Immediate
Replies = tuple[Reply, ...]


def chunks(kind: Kind, body: bytes, *, end_of_stream: bool) -> tuple[Chunk, ...]:
    """A part of a body in pieces that may be sent; none where there is nothing to say."""
    if len(body) <= CHUNK_LIMIT:
        return (Chunk(kind, body, end_of_stream),) if body or end_of_stream else ()
    last = (len(body) - 1) // CHUNK_LIMIT * CHUNK_LIMIT
    return tuple(
        Chunk(kind, body[start : start + CHUNK_LIMIT], end_of_stream and start == last)
        for start in range(0, len(body), CHUNK_LIMIT)
    )
