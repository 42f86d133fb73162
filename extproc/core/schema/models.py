"""One model of the document, and the whole document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from pydantic import field_validator, model_validator
from pydantic.alias_generators import to_camel

from extproc.core.schema.addresses import has_host_name
from extproc.core.schema.load_balancing import LoadBalancingSpec
from extproc.core.schema.sources import InferencePoolSpec, NamedEndpoints, ServiceSpec, Source
from extproc.core.schema.split import SplitSpec
from extproc.core.schema.values import EndpointAddress, Items, Name, Spec, unique

# What a model says of its servers.
_OF_SERVERS = frozenset(
    {"served_name", "adapters", "discover_adapters", "load_balancing", "response_ids"}
)


class ModelSpec(Spec):
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

    answer_as_requested: bool = False
    """`true`: responses name the model as the request did, by an alias, `MODEL_ADAPTER` or a
    split's name, instead of by the servers' name. Envoy must show response bodies
    (docs/responses.md). Compressed ones keep the servers' name."""

    response_ids: bool = True
    """`true`: the sidecar chooses the ids of `/v1/responses` by setting `request_id` in the body,
    unless the client sets it or `store` is false. It can then find the server that has a response
    (docs/responses.md). Set it to `false` for servers that refuse this field."""

    endpoints: Items[EndpointAddress] | None = None
    """The model's servers as a list. A host name is resolved again when its TTL ends, and each of
    its addresses is an endpoint. An empty list is a model without servers: its requests get 503
    `no_endpoints`. Each model has one of `endpoints`, `service`, `inferencePool` and `split`."""

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
        return values if values is None else tuple(unique(list(values)))

    @model_validator(mode="after")
    def _has_one_source_of_endpoints(self) -> ModelSpec:
        sources = (self.endpoints, self.service, self.inference_pool, self.split)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give one of 'endpoints', 'service', 'inferencePool' and 'split'")
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

    @cached_property
    def source(self) -> Source | None:
        """Where the endpoints are discovered; None for a list of IP addresses."""
        if self.endpoints is not None and any(map(has_host_name, self.endpoints)):
            return NamedEndpoints(self.endpoints)
        return self.service or self.inference_pool

    def names(self) -> Iterator[tuple[str, str]]:
        """Every name requests may use, with the key of the document that gives it."""
        yield "name", self.name
        for position, alias in enumerate(self.aliases):
            yield f"aliases[{position}]", alias
        for position, adapter in enumerate(self.adapters):
            yield f"adapters[{position}]", adapter


class ModelsSpec(Spec):
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
