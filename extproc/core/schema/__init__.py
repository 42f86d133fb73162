"""The models document, which users write: its schema, validation and types.

The rest of the core reads the same classes, and `docs/reference.md` is generated from them.
"""

from __future__ import annotations

from extproc.core.schema.addresses import endpoint_address, has_host_name, split_address
from extproc.core.schema.flow_control import ClassSpec, FlowControlSpec
from extproc.core.schema.load_balancing import (
    FilterName,
    FilterSpec,
    LoadBalancingSpec,
    PrefixHashSpec,
    SignalsSpec,
    StrategyName,
)
from extproc.core.schema.models import ModelSpec, ModelsSpec
from extproc.core.schema.sessions import (
    DEFAULT_SESSION_SOURCES,
    SESSION,
    SessionKey,
)
from extproc.core.schema.sources import (
    InferencePoolSpec,
    KubernetesSource,
    NamedEndpoints,
    ServiceSpec,
    Source,
)
from extproc.core.schema.split import SplitSpec, TargetSpec
from extproc.core.schema.values import (
    MAX_NAME_LENGTH,
    PREFIX_SOURCES,
    UNKNOWN_MODEL,
    kubernetes_name,
    plain_name,
)

__all__ = [
    "DEFAULT_SESSION_SOURCES",
    "MAX_NAME_LENGTH",
    "PREFIX_SOURCES",
    "SESSION",
    "UNKNOWN_MODEL",
    "ClassSpec",
    "FilterName",
    "FilterSpec",
    "FlowControlSpec",
    "InferencePoolSpec",
    "KubernetesSource",
    "LoadBalancingSpec",
    "ModelSpec",
    "ModelsSpec",
    "NamedEndpoints",
    "PrefixHashSpec",
    "ServiceSpec",
    "SessionKey",
    "SignalsSpec",
    "Source",
    "SplitSpec",
    "StrategyName",
    "TargetSpec",
    "endpoint_address",
    "has_host_name",
    "kubernetes_name",
    "plain_name",
    "split_address",
]
