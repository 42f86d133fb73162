"""One model of the document, and the whole document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from pydantic import field_validator, model_validator
from pydantic.alias_generators import to_camel

from extproc.core.schema.addresses import has_host_name
from extproc.core.schema.flow_control import FlowControlSpec
from extproc.core.schema.load_balancing import LoadBalancingSpec
from extproc.core.schema.sources import InferencePoolSpec, NamedEndpoints, ServiceSpec, Source
from extproc.core.schema.split import SplitSpec
from extproc.core.schema.values import UNKNOWN_MODEL, EndpointAddress, Items, Name, Spec, unique

# The fields of a model that concern its servers.
_SERVER_FIELDS = frozenset(
    {
        *("served_name", "adapters", "discover_adapters", "load_balancing", "response_ids"),
        "flow_control",
    }
)


class ModelSpec(Spec):
    """One model: its names, its endpoints and its load balancing."""

    name: Name
    """The value of `model` in requests. All names, aliases and adapters of a document must be
    different. Names have no control characters, and no white space at either end."""

    aliases: Items[Name] = ()
    """Other names for the model."""

    served_name: Name | None = None
    """The model's name on the servers (vLLM: `--served-model-name`), if it is not `name`. The
    sidecar writes it into the body's `model`, and changes nothing else in the body."""

    answer_as_requested: bool = False
    """`true`: responses contain the model name of the request, which can be an alias,
    `MODEL_ADAPTER` or a split's name, instead of the servers' name. Envoy must send response bodies
    to the sidecar (docs/responses.md). Compressed responses keep the servers' name."""

    response_ids: bool = True
    """`true`: the sidecar chooses the ids of `/v1/responses` by setting `request_id` in the body,
    unless the client sets it or `store` is false. It can then find the server that has a response
    (docs/responses.md). Set it to `false` for servers that reject this field."""

    endpoints: Items[EndpointAddress] | None = None
    """The addresses of the model's servers. A host name is resolved again when its TTL ends, and
    each of its addresses is an endpoint. With an empty list, requests get 503 `no_endpoints`. Each
    model has exactly one of `endpoints`, `service`, `inferencePool` and `split`."""

    service: ServiceSpec | None = None
    """The Kubernetes Service whose endpoints are the model's servers."""

    inference_pool: InferencePoolSpec | None = None
    """The InferencePool whose pods are the model's servers."""

    split: SplitSpec | None = None
    """Other models that share the requests for this name."""

    adapters: Items[Name] = ()
    """LoRA adapters that all of the servers have. Requests name one as their model, by its own name
    or as `MODEL_ADAPTER`."""

    discover_adapters: bool | None = None
    """`true`: the sidecar asks the servers for their adapters, in addition to those listed here.
    Default: `true` if the strategy reads metrics."""

    load_balancing: LoadBalancingSpec = LoadBalancingSpec()
    """The load balancing of the model's requests, with KubeAI's names."""

    flow_control: FlowControlSpec | None = None
    """Lets requests wait in the sidecar while no endpoint has room (docs/flow-control.md). `{}` has
    good defaults. Default, and with `null`: no flow control; each request is sent at once."""

    @field_validator("name", mode="after")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if name == UNKNOWN_MODEL:
            raise ValueError(f"{name!r} stands for unknown models in metrics; choose another name")
        return name

    @field_validator("aliases", "adapters", "endpoints", mode="after")
    @classmethod
    def _values_are_unique(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return values if values is None else tuple(unique(list(values)))

    @model_validator(mode="after")
    def _has_one_source_of_endpoints(self) -> ModelSpec:
        sources = (self.endpoints, self.service, self.inference_pool, self.split)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give one of 'endpoints', 'service', 'inferencePool' and 'split'")
        return self

    @model_validator(mode="after")
    def _split_has_no_server_fields(self) -> ModelSpec:
        if self.split is not None and (self.model_fields_set & _SERVER_FIELDS):
            field = next(key for key in sorted(_SERVER_FIELDS) if key in self.model_fields_set)
            raise ValueError(f"a split has no servers: set {to_camel(field)!r} on its targets")
        return self

    @property
    def served(self) -> str:
        """The model's name on the servers."""
        return self.served_name or self.name

    @cached_property
    def source(self) -> Source | None:
        """The source from which endpoints are discovered; None for a list of IP addresses."""
        if self.endpoints is not None and any(map(has_host_name, self.endpoints)):
            return NamedEndpoints(self.endpoints)
        return self.service or self.inference_pool

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield each name that requests can use, after the document's key that declares it."""
        yield "name", self.name
        for position, alias in enumerate(self.aliases):
            yield f"aliases[{position}]", alias
        for position, adapter in enumerate(self.adapters):
            yield f"adapters[{position}]", adapter


class ModelsSpec(Spec):
    """The whole models document."""

    models: Items[ModelSpec]
    """One or more models."""

    @field_validator("models", mode="after")
    @classmethod
    def _has_a_model(cls, models: tuple[ModelSpec, ...]) -> tuple[ModelSpec, ...]:
        if not models:
            raise ValueError("is empty; list at least one model")
        return models

    def served_names(self) -> list[str]:
        """Return the possible targets of a split: models with servers, and their adapters."""
        return [
            name
            for model in self.models
            if model.split is None
            for name in (model.name, *model.adapters)
        ]
