"""Encodes the reply that names a target, without protobuf's generated classes.

Every request gets one or two of these replies. With the generated classes, they took a third of
the CPU time of a request. Here they are joined from pieces, and most pieces are cached because
they are the same for many requests. The field numbers come from the generated classes. The format
is protobuf's: tag, length, content.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Packing

from google.protobuf.struct_pb2 import Struct, Value

from extproc.core.conversation.events import (
    DESTINATION,
    FALLBACK_HEADER,
    TARGET_HEADER,
    Kind,
    Proceed,
)
from extproc.core.routing.decision import Decision
from extproc.edge.wire.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ProcessingResponse,
)
from extproc.edge.wire.header_pb2 import HeaderValue, HeaderValueOption

TARGET_NAMESPACE = "envoy.lb"
NAMESPACE = "extproc"

MODEL_NAME = "x-gateway-model-name"
BASE_MODEL_NAME = "x-gateway-base-model-name"
"""Headers of the Gateway API Inference Extension's body-based routing: the body's `model`, and the
model that serves it, if that name is an adapter or an alias. HTTPRoutes match on them."""

_KEPT = 4096
"""Cached pieces of each kind. There are a few for each endpoint."""

_DOUBLE = Packing("<d").pack


def _delimited(number: int) -> bytes:
    """Return the tag of a field that has a length."""
    return bytes([number << 3 | 2])


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_KEPT_LENGTHS = 1024
_LENGTHS = [_varint(length) for length in range(_KEPT_LENGTHS)]


def _field(tag: bytes, content: bytes) -> bytes:
    return _opening(tag, len(content)) + content


def _opening(tag: bytes, size: int) -> bytes:
    return tag + (_LENGTHS[size] if size < _KEPT_LENGTHS else _varint(size))


def _body_mutation(body: bytes) -> bytes:
    """Return the bytes of a body mutation that precede the body."""
    inner = _opening(_BODY, len(body))
    return _opening(_BODY_MUTATION, len(inner) + len(body)) + inner


_REPLIES = {
    Kind.REQUEST_HEADERS: _delimited(ProcessingResponse.REQUEST_HEADERS_FIELD_NUMBER),
    Kind.REQUEST_BODY: _delimited(ProcessingResponse.REQUEST_BODY_FIELD_NUMBER),
}
_METADATA = _delimited(ProcessingResponse.DYNAMIC_METADATA_FIELD_NUMBER)
_RESPONSE = _delimited(HeadersResponse.RESPONSE_FIELD_NUMBER)
assert HeadersResponse.RESPONSE_FIELD_NUMBER == BodyResponse.RESPONSE_FIELD_NUMBER
_MUTATION = _delimited(CommonResponse.HEADER_MUTATION_FIELD_NUMBER)
_BODY_MUTATION = _delimited(CommonResponse.BODY_MUTATION_FIELD_NUMBER)
_BODY = _delimited(BodyMutation.BODY_FIELD_NUMBER)
_REROUTE = bytes([CommonResponse.CLEAR_ROUTE_CACHE_FIELD_NUMBER << 3, True])
_REPLACE = bytes([CommonResponse.STATUS_FIELD_NUMBER << 3, CommonResponse.CONTINUE_AND_REPLACE])
_SET = _delimited(HeaderMutation.SET_HEADERS_FIELD_NUMBER)
_REMOVE = _delimited(HeaderMutation.REMOVE_HEADERS_FIELD_NUMBER)
_HEADER = _delimited(HeaderValueOption.HEADER_FIELD_NUMBER)
_OVERWRITE = bytes(
    [
        HeaderValueOption.APPEND_ACTION_FIELD_NUMBER << 3,
        HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    ]
)
_NAME = _delimited(HeaderValue.KEY_FIELD_NUMBER)
_VALUE = _delimited(HeaderValue.RAW_VALUE_FIELD_NUMBER)
_ENTRY = _delimited(Struct.FIELDS_FIELD_NUMBER)
_ENTRY_KEY, _ENTRY_VALUE = _delimited(1), _delimited(2)  # of every map
_TEXT = _delimited(Value.STRING_VALUE_FIELD_NUMBER)
_NUMBER = bytes([Value.NUMBER_VALUE_FIELD_NUMBER << 3 | 1])
_STRUCT = _delimited(Value.STRUCT_VALUE_FIELD_NUMBER)


def encode_target(reply: Proceed) -> bytes:
    """Return the serialized ProcessingResponse of a reply to request headers or a body.

    It has the target, its fallback and the decision, in headers and in dynamic metadata.
    """
    decision = reply.decision
    fallback = "" if decision is None else decision.fallback or ""
    targets = reply.target, fallback, reply.destination
    mutation = _mutation(*targets) + _model_names(reply.requested, reply.model)
    for name, value in reply.set_headers:
        mutation += _set(name, value)
    for name in reply.remove_headers:
        mutation += _remove(name)
    # The body may have megabytes, so it comes last in its message and is copied only once.
    response, body = _field(_MUTATION, mutation), reply.body or reply.whole_body or b""
    if reply.reroute:
        response += _REROUTE
    if reply.whole_body is not None:
        response += _REPLACE
    if reply.body is not None or reply.whole_body is not None:
        response += _body_mutation(body)
    namespaces = _targets(*targets)
    if decision is not None:
        fields = _decision(decision)
        namespaces += _namespace(NAMESPACE, len(fields)) + fields
    response = _opening(_RESPONSE, len(response) + len(body)) + response
    replied = _opening(_REPLIES[reply.kind], len(response) + len(body)) + response
    return b"".join((replied, body, _field(_METADATA, namespaces)))


@lru_cache(_KEPT)
def _mutation(target: str, fallback: str, destination: str) -> bytes:
    mutation = _set(TARGET_HEADER, target)
    # Without a fallback, an existing header came from the client.
    mutation += _set(FALLBACK_HEADER, fallback) if fallback else _remove(FALLBACK_HEADER)
    # The same holds here while no endpoint is chosen.
    return mutation + (_set(DESTINATION, destination) if destination else _remove(DESTINATION))


@lru_cache(_KEPT)
def _model_names(requested: str, model: str) -> bytes:
    """Set the headers of body-based routing. Keep the client's while the model is unknown."""
    named = _set(MODEL_NAME, requested) if requested else b""
    return named + (_set(BASE_MODEL_NAME, model) if model else b"")


@lru_cache(_KEPT)
def _targets(target: str, fallback: str, destination: str) -> bytes:
    texts = {TARGET_HEADER: target, FALLBACK_HEADER: fallback, DESTINATION: destination}
    fields = b"".join(_text(name, value) for name, value in texts.items() if value)
    return _namespace(TARGET_NAMESPACE, len(fields)) + fields


def _decision(decision: Decision) -> bytes:
    fields = _names(
        decision.model,
        decision.adapter,
        decision.strategy,
        decision.lease.endpoint.address,
        str(decision.reason),  # an enumeration's member is slow to hash
    ) + _COUNTS(
        _INFLIGHT, decision.inflight, _CANDIDATES, decision.candidates, _HOPS, decision.hops
    )
    if decision.key is not None:
        fields += b"%b%016x" % (_PREFIX_HASH, decision.key)
    if decision.prediction is not None:
        fields += _PREDICTED_HIT + _DOUBLE(round(decision.prediction.hit, 4))
    if decision.wait is not None:
        fields += _QUEUED_MS + _DOUBLE(round(1000 * decision.wait.seconds))
        fields += _PRIORITY + _DOUBLE(decision.wait.priority)
        fields += _text("tenant_hash", decision.wait.tenant) if decision.wait.tenant else b""
    return fields


@lru_cache(_KEPT)
def _names(model: str, adapter: str, strategy: str, endpoint: str, reason: str) -> bytes:
    texts = {
        "model": model,
        "adapter": adapter,
        "strategy": strategy,
        "endpoint": endpoint,
        "reason": reason,
    }
    return b"".join(_text(name, value) for name, value in texts.items())


def _set(name: str, value: str) -> bytes:
    header = _field(_NAME, name.encode()) + _field(_VALUE, value.encode())
    return _field(_SET, _field(_HEADER, header) + _OVERWRITE)


def _remove(name: str) -> bytes:
    return _field(_REMOVE, name.encode())


def _text(name: str, value: str) -> bytes:
    return _entry(name, _field(_TEXT, value.encode()))


@lru_cache(_KEPT)
def _namespace(name: str, size: int) -> bytes:
    """Return the bytes that precede `size` bytes of the namespace's fields."""
    fields = bytes(size)
    return _entry(name, _field(_STRUCT, fields)).removesuffix(fields)


def _entry(name: str, value: bytes) -> bytes:
    return _field(_ENTRY, _field(_ENTRY_KEY, name.encode()) + _field(_ENTRY_VALUE, value))


def _before(name: str, tag: bytes, size: int) -> bytes:
    """Return the bytes that precede a value of this size under this name."""
    value = bytes(size)
    return _entry(name, tag + value).removesuffix(value)


_INFLIGHT, _CANDIDATES, _HOPS, _PREDICTED_HIT, _QUEUED_MS, _PRIORITY = (
    _before(name, _NUMBER, 8)
    for name in ("inflight", "candidates", "hops", "predicted_hit", "queued_ms", "priority")
)
_PREFIX_HASH = _before("prefix_hash", _field(_TEXT, bytes(16))[:2], 16)
_COUNTS = Packing(f"<{len(_INFLIGHT)}sd{len(_CANDIDATES)}sd{len(_HOPS)}sd").pack
