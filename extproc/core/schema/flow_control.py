"""Flow control of a model: `flowControl`."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator

from extproc.core.schema.values import HEADER_SOURCE, Items, Name, Spec, is_header_name

OBJECTIVE_HEADERS = ("x-gateway-inference-objective", "x-llm-d-inference-objective")
TENANT_HEADERS = ("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id")
"""The names of the Gateway API Inference Extension, and llm-d's later names."""

API_KEY_HEADERS = ("authorization", "x-api-key", "api-key")
"""The headers in which clients of OpenAI's, Anthropic's and Azure's APIs send their key."""

TIMEOUT_HEADER = "x-request-timeout-ms"

_API_KEY = "ApiKey"

LONGEST_WAIT_SECONDS = 290
"""The longest wait. The shipped Envoy configurations accept overrides of their message timeout up
to 300 seconds."""


def _header_name(text: str) -> str:
    if not is_header_name(text):
        raise ValueError(f"{text!r} is not the name of a header")
    return text.lower()


def _tenant(text: str) -> str:
    header = text.removeprefix(HEADER_SOURCE)
    if header != text and is_header_name(header):
        return HEADER_SOURCE + header.lower()
    if text != _API_KEY:
        raise ValueError(f"{text!r} is not 'ApiKey' or 'Header:<name>'")
    return text


HeaderName = Annotated[
    str, AfterValidator(_header_name), WithJsonSchema({"format": "name of a header"})
]
TenantSource = Annotated[
    str, AfterValidator(_tenant), WithJsonSchema({"format": "`ApiKey`, `Header:<name>`"})
]
MaxQueued = Annotated[int, Field(ge=0, le=1_000_000)]
MaxWaitSeconds = Annotated[float, Field(ge=0.1, le=LONGEST_WAIT_SECONDS)]


class ClassSpec(Spec):
    """A priority class. Requests name it in the objective header."""

    name: Name
    """The value of the objective header."""

    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    """Classes with a higher priority are dispatched first. If the queue is full, a request with a
    higher priority replaces the newest one of the lowest class with a negative priority."""

    max_queued: MaxQueued | None = None
    """The most requests of this class that wait. Default: only the model's limit holds."""

    max_wait_seconds: MaxWaitSeconds | None = None
    """The longest wait of a request of this class. Default: the model's."""


class FlowControlSpec(Spec):
    """Requests wait in the sidecar while no endpoint has room for them."""

    max_inflight: int | None = Field(default=None, ge=1, le=1_000_000)
    """The most requests in flight on an endpoint. Default: the sidecar learns a limit for each
    endpoint."""

    max_queued: MaxQueued = 10_000
    """The most requests that wait. Further ones get 429 `queue_full`."""

    max_wait_seconds: MaxWaitSeconds = 60.0
    """The longest wait of a request. After that, it gets 503 `queue_timeout`. A client can shorten
    it with the header `x-request-timeout-ms`, in milliseconds."""

    classes: Items[ClassSpec] = ()
    """Priority classes. Requests without a known class are in the class `default`, which has the
    priority 0 if it is not listed."""

    objective_header: HeaderName | None = None
    """The request header with the name of the class. Default: `x-gateway-inference-objective`, or
    `x-llm-d-inference-objective`."""

    tenant: TenantSource | None = None
    """The source of the tenant's name. Tenants of a class get equal shares of tokens. `ApiKey` uses
    a hash of the client's key. Default: the header `x-gateway-inference-fairness-id`, or
    `x-llm-d-inference-fairness-id`."""

    @field_validator("classes", mode="after")
    @classmethod
    def _names_are_unique(cls, classes: tuple[ClassSpec, ...]) -> tuple[ClassSpec, ...]:
        names = [one.name for one in classes]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise ValueError(f"{name!r} is listed twice")
        return classes

    @cached_property
    def objective_headers(self) -> tuple[str, ...]:
        """The headers that may name the class; the first one with a value wins."""
        return OBJECTIVE_HEADERS if self.objective_header is None else (self.objective_header,)

    @cached_property
    def tenant_headers(self) -> tuple[str, ...]:
        """The headers that may name the tenant; the first one with a value wins."""
        if self.tenant is None:
            return TENANT_HEADERS
        if self.tenant == _API_KEY:
            return API_KEY_HEADERS
        return (self.tenant.removeprefix(HEADER_SOURCE),)

    @cached_property
    def headers(self) -> frozenset[str]:
        """All request headers that flow control reads, in lower case."""
        return frozenset((*self.objective_headers, *self.tenant_headers, TIMEOUT_HEADER))

    @cached_property
    def by_name(self) -> dict[str, ClassSpec]:
        """The classes by name."""
        return {one.name: one for one in self.classes}
