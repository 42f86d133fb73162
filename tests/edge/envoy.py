"""Envoy's side of the protocol, with the classes of an independent implementation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderMap,
    HeaderValue,
    HeaderValueOptionHeaderAppendAction,
    Metadata,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeBodySendMode
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    CommonResponseResponseStatus,
    HeaderMutation,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    StreamedBodyResponse,
)
from envoy_data_plane.google.protobuf import ListValue, Struct, Value

OVERWRITE = HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
BodyMode = ProcessingModeBodySendMode
BUFFERED_PARTIAL = BodyMode.BUFFERED_PARTIAL
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
NONE = BodyMode.NONE
STREAMED = BodyMode.STREAMED

Hint = str | list[str] | float | None
"""The value of a metadata key, as gateways may write it."""


def header_map(headers: dict[str, bytes]) -> HeaderMap:
    """Return headers as Envoy sends them."""
    return HeaderMap([HeaderValue(key=key, raw_value=raw) for key, raw in headers.items()])


def request_headers(
    path: str = "/v1/chat/completions",
    *,
    method: str = "POST",
    end: bool = False,
    mode: ProcessingModeBodySendMode | None = BUFFERED_PARTIAL,
    response_mode: ProcessingModeBodySendMode = NONE,
    ahead: bool = False,
    metadata: dict[str, dict[str, Hint]] | None = None,
    **others: bytes,
) -> bytes:
    """Return the first message of a stream."""
    named = {name.replace("_", "-"): value for name, value in others.items()}
    headers = {":method": method.encode(), ":path": path.encode(), **named}
    return bytes(
        ProcessingRequest(
            request_headers=HttpHeaders(headers=header_map(headers), end_of_stream=end),
            protocol_config=None
            if mode is None
            else ProtocolConfiguration(
                request_body_mode=mode,
                response_body_mode=response_mode,
                send_body_without_waiting_for_header_response=ahead,
            ),
            metadata_context=_metadata(metadata),
        )
    )


def _metadata(metadata: dict[str, dict[str, Hint]] | None) -> Metadata | None:
    if metadata is None:
        return None
    return Metadata(
        filter_metadata={
            namespace: Struct(fields={key: _value(hint) for key, hint in hints.items()})
            for namespace, hints in metadata.items()
        }
    )


def _value(hint: Hint) -> Value:
    if isinstance(hint, str):
        return Value(string_value=hint)
    if isinstance(hint, list):
        return Value(list_value=ListValue(values=[Value(string_value=entry) for entry in hint]))
    return Value() if hint is None else Value(number_value=hint)


def request_body(content: dict[str, Any] | bytes, *, end: bool = True) -> bytes:
    """Return a message with the body, or a part of it."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return bytes(ProcessingRequest(request_body=HttpBody(body=raw, end_of_stream=end)))


def headers_without_path(*, end: bool = False, **others: str) -> bytes:
    """Return the first message of NGINX Gateway Fabric's endpoint picker client: the headers
    in lower case, in `value`, without pseudo headers and without `protocol_config`.
    """
    named = {"host": "llm", "content-type": "application/json", "user-agent": "curl/8", **others}
    headers = HeaderMap(
        [HeaderValue(key=name.replace("_", "-"), value=value) for name, value in named.items()]
    )
    return bytes(ProcessingRequest(request_headers=HttpHeaders(headers, end_of_stream=end)))


def request_trailers() -> bytes:
    """Return the end of a request with trailers."""
    return bytes(ProcessingRequest(request_trailers=HttpTrailers(trailers=header_map({}))))


def response_body(part: bytes, *, end: bool = False) -> bytes:
    """Return a part of the upstream's response body."""
    return bytes(ProcessingRequest(response_body=HttpBody(body=part, end_of_stream=end)))


def response_headers(
    attributes: Mapping[str, str | float] | None = None,
    metadata: dict[str, dict[str, Hint]] | None = None,
    *,
    status: bytes = b"200",
    **others: bytes,
) -> bytes:
    """Return the upstream's response headers, with the attributes that Envoy was asked to send."""
    shown = {}
    if attributes is not None:
        values = {name: _value(value) for name, value in attributes.items()}
        shown = {"envoy.filters.http.ext_proc": Struct(fields=values)}
    named = {name.replace("_", "-"): value for name, value in others.items()}
    headers = header_map({":status": status, **named})
    return bytes(
        ProcessingRequest(
            response_headers=HttpHeaders(headers=headers),
            attributes=shown,
            metadata_context=_metadata(metadata),
        )
    )


def response_trailers() -> bytes:
    """Return the end of the upstream's response."""
    return bytes(ProcessingRequest(response_trailers=HttpTrailers(trailers=header_map({}))))


def chat_request(model: str = "llama", content: str = "hello") -> dict[str, Any]:
    """Return a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": content}]}


class Reply:
    """A reply of the sidecar, parsed by an independent implementation."""

    def __init__(self, raw: bytes) -> None:
        self.message = ProcessingResponse.FromString(raw)
        self.kind: str = betterproto2.which_one_of(self.message, "response")[0]

    @property
    def mutation(self) -> HeaderMutation:
        """The changes of the headers, or the headers of the immediate response."""
        message = self.message
        answer = message.request_headers or message.request_body or message.response_headers
        if self.message.immediate_response is not None:
            found = self.message.immediate_response.headers
        else:
            found = answer.response.header_mutation if answer and answer.response else None
        assert found is not None
        return found

    @property
    def headers(self) -> dict[str, str]:
        """The headers that are set. Each must overwrite an existing one."""
        for option in self.mutation.set_headers:
            assert option.append_action is OVERWRITE
            assert option.header is not None
            assert option.header.value == ""
        return {
            option.header.key: option.header.raw_value.decode()
            for option in self.mutation.set_headers
            if option.header is not None
        }

    @property
    def rerouted(self) -> bool:
        """True if Envoy selects the route again."""
        answer = self.message.request_headers or self.message.request_body
        assert answer is not None
        assert answer.response is not None
        return answer.response.clear_route_cache

    @property
    def body(self) -> bytes | None:
        """The bytes that replace the body, or None."""
        message = self.message
        answer = message.request_headers or message.request_body or message.response_body
        mutation = answer.response.body_mutation if answer and answer.response else None
        return None if mutation is None else mutation.body

    @property
    def replaces(self) -> bool:
        """True if the reply to the headers has the whole body."""
        answer = self.message.request_headers
        if answer is None or answer.response is None:
            return False
        return answer.response.status is CommonResponseResponseStatus.CONTINUE_AND_REPLACE

    @property
    def streamed(self) -> StreamedBodyResponse:
        """The piece of a body that is sent back."""
        answer = self.message.request_body or self.message.response_body
        assert answer is not None
        assert answer.response is not None
        assert answer.response.body_mutation is not None
        found = answer.response.body_mutation.streamed_response
        assert found is not None
        return found

    @property
    def metadata(self) -> dict[str, dict[str, str | float]]:
        """Dynamic metadata by namespace."""
        if self.message.dynamic_metadata is None:
            return {}
        return {
            namespace: {name: _plain(inner) for name, inner in _struct(value).items()}
            for namespace, value in self.message.dynamic_metadata.fields.items()
        }

    @property
    def error(self) -> tuple[int, str]:
        """Status and code of an immediate response."""
        immediate = self.message.immediate_response
        assert immediate is not None
        assert immediate.status is not None
        return int(immediate.status.code), json.loads(immediate.body)["error"]["code"]


def _struct(value: Value) -> dict[str, Value]:
    assert value.struct_value is not None
    return value.struct_value.fields


def _plain(value: Value) -> str | float:
    plain = value.string_value if value.string_value is not None else value.number_value
    assert plain is not None
    return plain
