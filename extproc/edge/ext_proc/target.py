"""The answer that names a target, written straight to the wire.

Every request gets one or two of these. Through the generated classes, attribute by attribute,
they took a third of what a request costs, so they are put together from pieces, most of which
are the same from request to request and kept. The numbers of fields are the generated
classes' own; the format is protobuf's: tag, length, content.
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
"""The headers of the Gateway API Inference Extension's body-based routing: the body's `model`, and
the model that serves it where that name is an adapter or an alias. HTTPRoutes match on them."""

_KEPT = 4096
"""Pieces of each kind that are kept: there are a few for each endpoint."""

_DOUBLE = Packing("<d").pack


def _delimited(number: int) -> bytes:
    """The tag of a field that has a length."""
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
    """All of it that comes before the body."""
    inner = _opening(_BODY, len(body))
    return _opening(_BODY_MUTATION, len(inner) + len(body)) + inner


_ANSWERS = {
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


def encode_target(answer: Proceed) -> bytes:
    """The serialised ProcessingResponse of an answer to request headers or a body, with a target.

    The target, its fallback and the decision are in headers and in dynamic metadata.
    """
    decision = answer.decision
    fallback = "" if decision is None else decision.fallback or ""
    targets = answer.target, fallback, answer.destination
    mutation = _mutation(*targets) + _model_names(answer.requested, answer.model)
    for name, value in answer.set_headers:
        mutation += _set(name, value)
    for name in answer.remove_headers:
        mutation += _remove(name)
    # The body may be megabytes, so it is last of its message, and copied once.
    response, body = _field(_MUTATION, mutation), answer.body or b""
    if answer.reroute:
        response += _REROUTE
    if answer.body is not None:
        response += _body_mutation(body)
    namespaces = _targets(*targets)
    if decision is not None:
        fields = _decision(decision)
        namespaces += _namespace(NAMESPACE, len(fields)) + fields
    response = _opening(_RESPONSE, len(response) + len(body)) + response
    answered = _opening(_ANSWERS[answer.kind], len(response) + len(body)) + response
    return b"".join((answered, body, _field(_METADATA, namespaces)))


@lru_cache(_KEPT)
def _mutation(target: str, fallback: str, destination: str) -> bytes:
    mutation = _set(TARGET_HEADER, target)
    # Without a fallback whatever is there came from the client.
    mutation += _set(FALLBACK_HEADER, fallback) if fallback else _remove(FALLBACK_HEADER)
    # While there is no address to name, the same holds here.
    return mutation + (_set(DESTINATION, destination) if destination else _remove(DESTINATION))


@lru_cache(_KEPT)
def _model_names(requested: str, model: str) -> bytes:
    """Return nothing while the model is unknown: a client's own headers stay."""
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
        str(decision.reason),  # a member of an enumeration is slow to look up
    ) + _COUNTS(
        _INFLIGHT, decision.inflight, _CANDIDATES, decision.candidates, _HOPS, decision.hops
    )
    if decision.key is not None:
        fields += b"%b%016x" % (_PREFIX_HASH, decision.key)
    if decision.prediction is not None:
        fields += _PREDICTED_HIT + _DOUBLE(round(decision.prediction.hit, 4))
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
    """What comes before so many bytes of the namespace's fields."""
    fields = bytes(size)
    return _entry(name, _field(_STRUCT, fields)).removesuffix(fields)


def _entry(name: str, value: bytes) -> bytes:
    return _field(_ENTRY, _field(_ENTRY_KEY, name.encode()) + _field(_ENTRY_VALUE, value))


def _before(name: str, tag: bytes, size: int) -> bytes:
    """What comes before a value of one size, under that name."""
    value = bytes(size)
    return _entry(name, tag + value).removesuffix(value)


_INFLIGHT, _CANDIDATES, _HOPS, _PREDICTED_HIT = (
    _before(name, _NUMBER, 8) for name in ("inflight", "candidates", "hops", "predicted_hit")
)
_PREFIX_HASH = _before("prefix_hash", _field(_TEXT, bytes(16))[:2], 16)
_COUNTS = Packing(f"<{len(_INFLIGHT)}sd{len(_CANDIDATES)}sd{len(_HOPS)}sd").pack
