"""What users configure: the models document, typed and validated.

The classes are the document's schema, the reference of its keys and what the
rest of the core reads, so that the three cannot drift apart. Names and defaults
of `loadBalancing` are KubeAI's: its block can be pasted as it is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

StrategyName = Literal["PrefixHash", "LeastLoad", "RoundRobin", "Random"]

HEADER_SOURCE = "Header:"

PREFIX_SOURCES = {
    "FirstUserMessage": "The beginning of the first user message, or of a completion's prompt: "
    "KubeAI's key. For chats that open differently.",
    "SystemAndFirstUserMessage": "The beginning of the system prompt followed by the first user "
    "message. For many system prompts; set `prefixCharLength` beyond their length, or one system "
    "prompt is one key.",
    "PromptHead": "The beginning of everything in the prompt, in the body's order: tools, roles, "
    "messages. For agents, completions and long shared documents.",
    "Header:<name>": "The whole value of this request header, whatever its length. For session "
    "affinity.",
}
"""What can make a request's key."""

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _unique(values: list[str]) -> list[str]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise ValueError(f"{value!r} is listed twice")
    return values


def _ip_port(text: str) -> str:
    """Checks IP:PORT and returns its canonical form, `[IP]:PORT` for IPv6."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise ValueError(
            f"{text!r} is not IP:PORT; Envoy's original-destination cluster resolves no names"
        ) from None
    if bracketed != (ip.version == 6):
        raise ValueError(f"{text!r}: brackets go around an IPv6 address, and only there")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
    return f"[{ip}]:{int(port)}" if ip.version == 6 else f"{ip}:{int(port)}"


def _prefix_source(text: str) -> str:
    header = text.removeprefix(HEADER_SOURCE)
    if header != text and _HEADER_NAME.fullmatch(header):
        return HEADER_SOURCE + header.lower()
    if text not in PREFIX_SOURCES or header != text:
        raise ValueError(f"{text!r} is not one of {', '.join(PREFIX_SOURCES)}")
    return text


def kubernetes_name(text: str) -> str:
    """Checks the name of a Kubernetes object. Raises ValueError."""
    if len(text) > 253 or not _DNS_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no Kubernetes name: lower case letters, digits, '-' and '.'")
    return text


def _service_port(port: object) -> str | int:
    if isinstance(port, str) and port:
        # A name has a letter in it: digits in quotes are what a template made of a number.
        if not port.isdecimal():
            return port
        port = int(port)
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
        return port
    raise ValueError("give the port's name or its number, from 1 to 65535")


def _written(form: str) -> WithJsonSchema:
    """How such values are written, for the reference."""
    return WithJsonSchema({"format": form})


Item = TypeVar("Item")
# Strictness would refuse YAML's lists.
Items = Annotated[tuple[Item, ...], Field(strict=False)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
KubernetesName = Annotated[
    str, AfterValidator(kubernetes_name), _written("name of a Kubernetes object")
]
IpPort = Annotated[str, AfterValidator(_ip_port), _written("`IP:PORT`, for IPv6 `[IP]:PORT`")]
PrefixSource = Annotated[
    str,
    AfterValidator(_prefix_source),
    _written(", ".join(f"`{source}`" for source in PREFIX_SOURCES)),
]
ServicePort = Annotated[
    str | int, PlainValidator(_service_port), _written("name, or number from 1 to 65535")
]


class _Spec(BaseModel):
    """Frozen, strict about keys, camelCase in the document."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, validate_by_alias=True
    )


class PrefixHashSpec(_Spec):
    """How PrefixHash reads the key and bounds the load."""

    mean_load_factor: int = Field(default=125, ge=100, le=100_000)
    """Percent of the mean load that an endpoint may carry before requests move on along the ring.
    The mean is that of the endpoints which could serve the request, the request included."""

    prefix_char_length: int = Field(default=100, ge=1, le=1_000_000)
    """Characters (code points) of the source's text that make the key."""

    replication: int = Field(default=256, ge=1, le=4096)
    """Places of each endpoint on the ring."""

    prefix_source: PrefixSource = "FirstUserMessage"
    """What makes the key."""

    @property
    def header(self) -> str | None:
        """The header to read the key from, in lower case, where the source is one."""
        if self.prefix_source.startswith(HEADER_SOURCE):
            return self.prefix_source.removeprefix(HEADER_SOURCE)
        return None


class LoadBalancingSpec(_Spec):
    """How a model's endpoints share its requests."""

    strategy: StrategyName = "PrefixHash"
    """How an endpoint is chosen."""

    prefix_hash: PrefixHashSpec = PrefixHashSpec()
    """For the strategy `PrefixHash`; others do not look at it."""


class ServiceSpec(_Spec):
    """A Kubernetes Service whose EndpointSlices list the endpoints."""

    namespace: KubernetesName
    """Of the Service."""

    name: KubernetesName
    """Of the Service."""

    port: ServicePort
    """The port's name, or the number at which the pods listen: what the EndpointSlices declare."""

    def __str__(self) -> str:
        return f"service {self.namespace}/{self.name}"


class InferencePoolSpec(_Spec):
    """An InferencePool of the Gateway API, whose selector finds the pods."""

    namespace: KubernetesName
    """Of the pool and of its pods."""

    name: KubernetesName
    """Of the pool."""

    def __str__(self) -> str:
        return f"InferencePool {self.namespace}/{self.name}"


Source = ServiceSpec | InferencePoolSpec
"""Where endpoints are discovered; equal sources are one, whichever models use them."""


class ModelSpec(_Spec):
    """One model: the names it answers to, where it runs, how requests are spread."""

    name: Name
    """What requests put in `model`. Bodies go on as they are, so the servers must know the model
    by this name (vLLM: `--served-model-name`). No two names, aliases or adapters of a document
    may be alike."""

    aliases: Items[Name] = ()
    """Other names for the model, which the servers must know too."""

    endpoints: Items[IpPort] | None = None
    """The model's servers as a fixed list. Each model has one of `endpoints`, `service` and
    `inferencePool`."""

    service: ServiceSpec | None = None
    """The Kubernetes Service whose endpoints are the model's servers."""

    inference_pool: InferencePoolSpec | None = None
    """The InferencePool whose pods are the model's servers."""

    adapters: Items[Name] = ()
    """LoRA adapters that every one of the servers has. Each is a model name of its own;
    `MODEL_ADAPTER` means it too, where the servers know that name."""

    load_balancing: LoadBalancingSpec = LoadBalancingSpec()
    """How requests are spread: KubeAI's block."""

    @field_validator("aliases", "adapters", "endpoints", mode="after")
    @classmethod
    def _lists_hold_no_doubles(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return values if values is None else tuple(_unique(list(values)))

    @model_validator(mode="after")
    def _has_one_source_of_endpoints(self) -> ModelSpec:
        sources = (self.endpoints, self.service, self.inference_pool)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give one of 'endpoints', 'service' and 'inferencePool'")
        if self.endpoints == ():
            raise ValueError("'endpoints' is empty")
        return self

    @property
    def source(self) -> Source | None:
        """Where the endpoints are discovered; None for a static list."""
        return self.service or self.inference_pool

    def names(self) -> Iterator[tuple[str, str]]:
        """Every name requests may use, with the key of the document that gives it."""
        yield "name", self.name
        for position, alias in enumerate(self.aliases):
            yield f"aliases[{position}]", alias
        for position, adapter in enumerate(self.adapters):
            yield f"adapters[{position}]", adapter


class ModelsSpec(_Spec):
    """The whole models document."""

    models: Items[ModelSpec]
    """The models, one at least."""

    @field_validator("models", mode="after")
    @classmethod
    def _there_are_models(cls, models: tuple[ModelSpec, ...]) -> tuple[ModelSpec, ...]:
        if not models:
            raise ValueError("is empty; list at least one model")
        return models
