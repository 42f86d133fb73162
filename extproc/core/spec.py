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

StrategyName = Literal[
    "PrefixHash",
    "Random",
    "RoundRobin",
    "LeastLoad",
    "LeastRequest",
    "LeastQueue",
    "LeastKVCache",
    "QueueKVCache",
    "LoraQueue",
    "LoraKVCache",
    "LowLatency",
    "Chain",
]

FilterName = Literal["LowLatency", "LoraAffinity", "LeastQueue", "LeastKVCache", "PrefixHash"]

LONGEST_NAME = 256
"""Characters of a model's, alias's or adapter's name."""

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
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
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


class FilterSpec(_Spec):
    """One step of a chain: it passes on some of the endpoints that the step before it left, and
    one at least.
    """

    filter: FilterName
    """What it keeps."""

    max_queue: int | None = Field(default=None, ge=0, le=100_000)
    """Of `LowLatency` and `LoraAffinity`: requests waiting on an endpoint at most, as long as there
    is another. 50 where it is not given."""

    slack: float | None = Field(default=None, ge=0, le=100_000)
    """Of `LeastQueue` (requests) and `LeastKVCache` (share of the cache, 0 to 1): how far above
    the least an endpoint may be and still be kept. Where it is not given: the distance from the
    least to the most, divided by the number of endpoints."""

    @model_validator(mode="after")
    def _has_only_its_own_thresholds(self) -> FilterSpec:
        if self.max_queue is not None and self.filter not in ("LowLatency", "LoraAffinity"):
            raise ValueError(f"'maxQueue' means nothing to {self.filter}")
        if self.slack is not None and self.filter not in ("LeastQueue", "LeastKVCache"):
            raise ValueError(f"'slack' means nothing to {self.filter}")
        if self.slack is not None and self.slack > 1 and self.filter == "LeastKVCache":
            raise ValueError("'slack' is a share of the cache: from 0 to 1")
        return self


class SignalsSpec(_Spec):
    """How vLLM's own metrics are read, for strategies that use them."""

    interval_seconds: float = Field(default=0.2, ge=0.05, le=60)
    """Between two readings of an endpoint that has requests. Longer where there are so many
    endpoints that reading them would cost the sidecar more than a few percent of a core."""

    idle_interval_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """The same while it has none."""

    stale_after_seconds: float = Field(default=3.0, ge=0.1, le=600)
    """What is older than this is not believed: the endpoint then counts as an average one with
    the requests that this sidecar has in flight there."""

    slow_start_seconds: float = Field(default=30.0, ge=0, le=3600)
    """How long a new endpoint, which has nothing waiting and nothing cached, is held back: the
    requests it may have in flight before it counts as loaded grow from none to the mean of the
    others over this time."""

    @model_validator(mode="after")
    def _is_stale_only_after_a_missed_reading(self) -> SignalsSpec:
        if self.stale_after_seconds < 2 * max(self.interval_seconds, self.idle_interval_seconds):
            raise ValueError("'staleAfterSeconds' must be twice as long as both intervals")
        return self


class LoadBalancingSpec(_Spec):
    """How a model's endpoints share its requests."""

    strategy: StrategyName = "PrefixHash"
    """How an endpoint is chosen."""

    prefix_hash: PrefixHashSpec = PrefixHashSpec()
    """For the strategy `PrefixHash`; the key breaks ties in all others that read signals."""

    chain: Items[FilterSpec] = ()
    """The filters of the strategy `Chain`, applied in this order."""

    signals: SignalsSpec = SignalsSpec()
    """For strategies that read vLLM's metrics, and for the discovery of adapters."""

    @model_validator(mode="after")
    def _has_a_chain_where_it_is_used(self) -> LoadBalancingSpec:
        if (self.strategy == "Chain") != bool(self.chain):
            raise ValueError("the strategy 'Chain' needs a 'chain', and only it reads one")
        return self


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


class TargetSpec(_Spec):
    """A model that takes a share of a split."""

    model: Name
    """A model of this document by its name, or one of its configured adapters."""

    weight: int = Field(ge=0, le=1_000_000)
    """Its share is its weight over the sum of all. 0: only if no other target has endpoints."""


class SplitSpec(_Spec):
    """Models that share the requests of one name, by weight. A request that is like another in
    what `stickyBy` names goes to the same target, as long as that has endpoints; when a weight
    changes, only those move that have to.
    """

    targets: Items[TargetSpec]
    """The models; the body's model becomes the target's."""

    sticky_by: PrefixSource = "FirstUserMessage"
    """What requests must share to go to the same target."""

    prefix_char_length: int = Field(default=100, ge=1, le=1_000_000)
    """Characters of it that count; a header counts whole."""

    @field_validator("targets", mode="after")
    @classmethod
    def _targets_share(cls, targets: tuple[TargetSpec, ...]) -> tuple[TargetSpec, ...]:
        _unique([target.model for target in targets])
        if not any(target.weight for target in targets):
            raise ValueError("one target at least must have a weight above 0")
        return targets

    @property
    def key(self) -> PrefixHashSpec:
        """How the text that makes requests alike is read."""
        return PrefixHashSpec.model_construct(
            prefix_source=self.sticky_by, prefix_char_length=self.prefix_char_length
        )


# What a model says of its servers.
_OF_SERVERS = frozenset({"served_name", "adapters", "discover_adapters", "load_balancing"})


class ModelSpec(_Spec):
    """One model: the names it answers to, where it runs, how requests are spread."""

    name: Name
    """What requests put in `model`. No two names, aliases or adapters of a document may be
    alike."""

    aliases: Items[Name] = ()
    """Other names for the model."""

    served_name: Name | None = None
    """The name by which the servers know the model (vLLM: `--served-model-name`), if it is not
    `name`. Requests that call it otherwise have the body's `model` changed to this, and nothing
    else."""

    endpoints: Items[IpPort] | None = None
    """The model's servers as a fixed list. Each model has one of `endpoints`, `service`,
    `inferencePool` and `split`."""

    service: ServiceSpec | None = None
    """The Kubernetes Service whose endpoints are the model's servers."""

    inference_pool: InferencePoolSpec | None = None
    """The InferencePool whose pods are the model's servers."""

    split: SplitSpec | None = None
    """Other models, which share the requests of this name."""

    adapters: Items[Name] = ()
    """LoRA adapters that every one of the servers has. Each is a model name of its own;
    `MODEL_ADAPTER` means it too."""

    discover_adapters: bool | None = None
    """Whether the servers are asked which adapters they have, beside those listed here. By
    default they are, where the strategy reads signals."""

    load_balancing: LoadBalancingSpec = LoadBalancingSpec()
    """How requests are spread: KubeAI's block."""

    @field_validator("aliases", "adapters", "endpoints", mode="after")
    @classmethod
    def _lists_hold_no_doubles(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return values if values is None else tuple(_unique(list(values)))

    @model_validator(mode="after")
    def _has_one_source_of_endpoints(self) -> ModelSpec:
        sources = (self.endpoints, self.service, self.inference_pool, self.split)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give one of 'endpoints', 'service', 'inferencePool' and 'split'")
        if self.endpoints == ():
            raise ValueError("'endpoints' is empty")
        return self

    @model_validator(mode="after")
    def _has_servers_or_is_a_split(self) -> ModelSpec:
        if self.split is not None and (self.model_fields_set & _OF_SERVERS):
            given = next(key for key in sorted(_OF_SERVERS) if key in self.model_fields_set)
            raise ValueError(f"a split has no servers of its own: {to_camel(given)!r} goes to them")
        return self

    @property
    def served(self) -> str:
        """The name by which the servers know the model."""
        return self.served_name or self.name

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

    def served_names(self) -> list[str]:
        """What a split may have as its targets: models with servers, and their adapters."""
        return [
            name
            for model in self.models
            if model.split is None
            for name in (model.name, *model.adapters)
        ]
