"""Decodes Envoy's protobuf messages into the core's events, and encodes its replies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import cast

from google.protobuf.struct_pb2 import Value

from extproc.core.conversation.events import (
    BodyMode,
    Chunk,
    Event,
    Immediate,
    Kind,
    LongerTimeout,
    Modes,
    Proceed,
    Reply,
)
from extproc.core.fleet.load_report import REPORT_HEADER
from extproc.core.fleet.outcome import outcome_of
from extproc.edge.ext_proc.target import TARGET_NAMESPACE, encode_target
from extproc.edge.wire.external_processor_pb2 import (
    HeaderMutation,
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)
from extproc.edge.wire.header_pb2 import HeaderValueOption
from extproc.edge.wire.http_status_pb2 import StatusCode
from extproc.edge.wire.processing_mode_pb2 import ProcessingMode

# The endpoint picker protocol's names.
SERVED = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"

_KEPT_MODES = 64  # a hostile peer could send any number of them
_FILTER = "envoy.filters.http.ext_proc"
_SERVED_BY = "upstream.address"
_ATTEMPTS = "upstream.request_attempt_count"
_DETAILS = "response.code_details"
_STATUS = ":status"
_STATUS_DIGITS = 3
_TYPE, _ENCODING, _IDENTITY = "content-type", "content-encoding", b"identity"
_READ = frozenset((_STATUS, REPORT_HEADER, _TYPE, _ENCODING))

_KINDS: dict[str, Kind] = {kind.name.lower(): kind for kind in Kind if kind is not Kind.UNKNOWN}
_FIELDS = {kind: field for field, kind in _KINDS.items()}
_HEADER_KINDS = (Kind.REQUEST_HEADERS, Kind.RESPONSE_HEADERS)
_UNKNOWN = Event(Kind.UNKNOWN)
_Mode = ProcessingMode.BodySendMode
# An override replaces every mode. The rest of the request passes without us. The trailers are
# requested because they keep the stream open until the end of the response.
_SHOW_RESPONSE = ProcessingMode(
    request_header_mode=ProcessingMode.SEND,
    response_header_mode=ProcessingMode.SEND,
    response_body_mode=ProcessingMode.STREAMED,
    response_trailer_mode=ProcessingMode.SEND,
)
_NO_HEADERS = _UNKNOWN.headers
_BODY_MODES = {
    ProcessingMode.NONE: BodyMode.NONE,
    ProcessingMode.BUFFERED: BodyMode.BUFFERED,
    ProcessingMode.BUFFERED_PARTIAL: BodyMode.BUFFERED,
    ProcessingMode.FULL_DUPLEX_STREAMED: BodyMode.DUPLEX,
}


def decode(message: bytes) -> Event:
    """Return the event in a serialized ProcessingRequest.

    Raises google.protobuf.message.DecodeError for other bytes.
    """
    request = ProcessingRequest.FromString(message)
    kind = _KINDS.get(request.WhichOneof("request") or "")
    modes = _modes(request) if request.HasField("protocol_config") else None
    if kind is Kind.REQUEST_HEADERS:
        headers = request.request_headers
        return Event(kind, _headers(headers), b"", headers.end_of_stream, modes, _subset(request))
    if kind is Kind.REQUEST_BODY or kind is Kind.RESPONSE_BODY:
        body: HttpBody = getattr(request, _FIELDS[kind])
        subset = _subset(request) if request.HasField("metadata_context") else None
        return Event(kind, _NO_HEADERS, body.body, body.end_of_stream, modes, subset)
    if kind is Kind.RESPONSE_HEADERS:
        attributes = _attributes(request)
        status, load_report, media_type = _response_headers(request.response_headers)
        return Event(
            kind,
            load_report=load_report,
            modes=modes,
            served_by=_served_by(request, attributes),
            outcome=outcome_of(status, _text(attributes, _DETAILS)),
            attempts=_whole(attributes, _ATTEMPTS),
            media_type=media_type,
        )
    return Event(kind, modes=modes) if kind else _UNKNOWN


def encode(reply: Reply) -> bytes:
    """Return the serialized ProcessingResponse of a reply."""
    if isinstance(reply, Proceed):
        return _encode_proceed(reply)
    response = ProcessingResponse()
    if isinstance(reply, Immediate):
        _fill_immediate(response, reply)
    elif isinstance(reply, LongerTimeout):
        response.override_message_timeout.FromMilliseconds(round(1000 * reply.seconds))
    else:
        _fill_chunk(response, reply)
    return response.SerializeToString()


def _encode_proceed(reply: Proceed) -> bytes:
    """Encode a reply that lets the request or response continue.

    Each request has one such reply with a target. Most others change nothing.
    """
    kind = reply.kind
    if reply.target and (kind is Kind.REQUEST_HEADERS or kind is Kind.REQUEST_BODY):
        return encode_target(reply)
    if (reply.remove_headers or reply.show_response) and kind in _HEADER_KINDS:
        response = ProcessingResponse()
        common = getattr(response, _FIELDS[kind]).response
        common.header_mutation.remove_headers.extend(reply.remove_headers)
        if reply.reroute:
            common.clear_route_cache = True
        if reply.show_response:
            response.mode_override.CopyFrom(_SHOW_RESPONSE)
        return response.SerializeToString()
    if reply.body is not None:
        response = ProcessingResponse()
        getattr(response, _FIELDS[kind]).response.body_mutation.body = reply.body
        return response.SerializeToString()
    return _UNCHANGED[kind]


def _unchanged(field: str) -> bytes:
    """Return a response with an empty member: Envoy continues and changes nothing."""
    response = ProcessingResponse()
    getattr(response, field).SetInParent()
    return response.SerializeToString()


_UNCHANGED = {kind: _unchanged(field) for kind, field in _FIELDS.items()}


def _headers(message: HttpHeaders) -> Mapping[str, bytes]:
    headers = {h.key: h.raw_value for h in message.headers.headers}
    if b"" in headers.values():
        # Envoy sets raw_value, but other gateways may set value.
        return {h.key: h.raw_value or h.value.encode() for h in message.headers.headers}
    return headers


def _response_headers(message: HttpHeaders) -> tuple[int, bytes | None, str]:
    """Return a response's status (0: malformed), its load report and its body's media type."""
    found: dict[str, bytes] = {}
    for header in message.headers.headers:
        if header.key in _READ:
            found[header.key] = header.raw_value or header.value.encode()
    status, media_type = found.get(_STATUS, b""), found.get(_TYPE, b"")
    is_status = len(status) == _STATUS_DIGITS and status.isdigit()
    is_plain = found.get(_ENCODING, _IDENTITY) == _IDENTITY
    plain = _media_type(media_type) if is_plain else ""
    return int(status) if is_status else 0, found.get(REPORT_HEADER), plain


@lru_cache(_KEPT_MODES)
def _media_type(value: bytes) -> str:
    return value.decode("latin-1").partition(";")[0].strip().lower()


def _modes(request: ProcessingRequest) -> Modes:
    config = request.protocol_config
    return _modes_of(
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
    )


@lru_cache(_KEPT_MODES)
def _modes_of(request: _Mode, response: _Mode, ahead: bool) -> Modes:
    mode = _BODY_MODES.get(request, BodyMode.OTHER)
    if ahead and request == ProcessingMode.STREAMED:
        mode = BodyMode.AHEAD
    return Modes(mode, _BODY_MODES.get(response, BodyMode.OTHER))


def _subset(request: ProcessingRequest) -> tuple[str, ...] | None:
    hint = _metadata(request, SUBSET_NAMESPACE, SUBSET)
    if hint is None:
        return None
    if hint.HasField("list_value"):
        return tuple(entry.string_value for entry in hint.list_value.values)
    return (hint.string_value,)


def _attributes(request: ProcessingRequest) -> Mapping[str, Value]:
    """Return the attributes that the filter's configuration asks Envoy to send."""
    # A lookup of a missing key would add it, so check first.
    return request.attributes[_FILTER].fields if _FILTER in request.attributes else {}


def _text(attributes: Mapping[str, Value], name: str) -> str:
    value = attributes.get(name)
    return "" if value is None else value.string_value


def _whole(attributes: Mapping[str, Value], name: str) -> int:
    value = attributes.get(name)
    return 0 if value is None or not isfinite(value.number_value) else int(value.number_value)


def _served_by(request: ProcessingRequest, attributes: Mapping[str, Value]) -> str:
    served = _metadata(request, TARGET_NAMESPACE, SERVED)
    return _text(attributes, _SERVED_BY) if served is None else served.string_value


def _metadata(request: ProcessingRequest, namespace: str, key: str) -> Value | None:
    """Return the dynamic metadata that an earlier filter set under this key."""
    if not request.HasField("metadata_context"):
        return None
    namespaces = request.metadata_context.filter_metadata
    if namespace not in namespaces or key not in namespaces[namespace].fields:
        return None
    return namespaces[namespace].fields[key]


def _fill_immediate(response: ProcessingResponse, reply: Immediate) -> None:
    immediate = response.immediate_response
    immediate.status.code = cast("StatusCode", reply.status)
    for name, value in reply.headers.items():
        _set(immediate.headers, name, value)
    immediate.body = reply.body
    immediate.details = reply.details


def _fill_chunk(response: ProcessingResponse, reply: Chunk) -> None:
    member = getattr(response, _FIELDS[reply.kind])
    part = member.response.body_mutation.streamed_response
    part.body = reply.body
    part.end_of_stream = reply.end_of_stream


def _set(mutation: HeaderMutation, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    option.header.key = name
    option.header.raw_value = value.encode()
