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
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

StrategyName = Literal["PrefixHash", "LeastLoad", "RoundRobin", "Random"]

HEADER_SOURCE = "Header:"
_PREFIX_SOURCES = ("FirstUserMessage", "SystemAndFirstUserMessage", "PromptHead")
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
    if text not in _PREFIX_SOURCES:
        raise ValueError(f"{text!r} is not one of {', '.join(_PREFIX_SOURCES)}, Header:<name>")
    return text


def _service_port(port: object) -> str | int:
    if isinstance(port, str) and port:
        return port
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
        return port
    raise ValueError("give the port's name or its number, from 1 to 65535")


Item = TypeVar("Item")
# Strictness would refuse YAML's lists.
Items = Annotated[tuple[Item, ...], Field(strict=False)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
IpPort = Annotated[str, AfterValidator(_ip_port)]
PrefixSource = Annotated[str, AfterValidator(_prefix_source)]
ServicePort = Annotated[str | int, PlainValidator(_service_port)]


class _Spec(BaseModel):
    """Frozen, strict about keys, camelCase in the document."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, validate_by_alias=True
    )


class PrefixHashSpec(_Spec):
    """How PrefixHash reads the key and bounds the load."""

    mean_load_factor: int = Field(default=125, ge=100, le=100_000)
    """Percent of the mean load that an endpoint may carry before requests move on."""

    prefix_char_length: int = Field(default=100, ge=1, le=1_000_000)
    """Characters (code points) of the source's text that make the key."""

    replication: int = Field(default=256, ge=1, le=4096)
    """Places of each endpoint on the ring."""

    prefix_source: PrefixSource = "FirstUserMessage"
    """The text that makes the key."""

    @property
    def header(self) -> str | None:
        """The header to read the key from, in lower case, where the source is one."""
        if self.prefix_source.startswith(HEADER_SOURCE):
            return self.prefix_source.removeprefix(HEADER_SOURCE)
        return None


class LoadBalancingSpec(_Spec):
    """How a model's endpoints share its requests."""

    strategy: StrategyName = "PrefixHash"
    prefix_hash: PrefixHashSpec = PrefixHashSpec()


class ServiceSpec(_Spec):
    """A Kubernetes Service whose EndpointSlices list the endpoints."""

    namespace: Name
    name: Name
    port: ServicePort


class ModelSpec(_Spec):
    """One model: the names it answers to, where it runs, how requests are spread."""

    name: Name
    aliases: Items[Name] = ()
    endpoints: Items[IpPort] | None = None
    service: ServiceSpec | None = None
    adapters: Items[Name] = ()
    load_balancing: LoadBalancingSpec = LoadBalancingSpec()

    @field_validator("aliases", "adapters", "endpoints", mode="after")
    @classmethod
    def _lists_hold_no_doubles(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return values if values is None else tuple(_unique(list(values)))

    @model_validator(mode="after")
    def _has_one_source_of_endpoints(self) -> ModelSpec:
        if (self.endpoints is None) == (self.service is None):
            raise ValueError("give either 'endpoints' or 'service'")
        if self.endpoints == ():
            raise ValueError("'endpoints' is empty")
        return self

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

    @field_validator("models", mode="after")
    @classmethod
    def _there_are_models(cls, models: tuple[ModelSpec, ...]) -> tuple[ModelSpec, ...]:
        if not models:
            raise ValueError("is empty; list at least one model")
        return models
