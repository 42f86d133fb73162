"""What users configure: the models document, typed and validated.

The classes are the document's schema, the reference of its keys and what the
rest of the core reads, so that the three cannot drift apart.
"""

from __future__ import annotations

from extproc.core.spec.addresses import endpoint_address, has_host_name, split_address
from extproc.core.spec.load_balancing import (
    FilterName,
    FilterSpec,
    LoadBalancingSpec,
    PrefixHashSpec,
    SignalsSpec,
    StrategyName,
)
from extproc.core.spec.models import ModelSpec, ModelsSpec
from extproc.core.spec.sessions import (
    DEFAULT_SESSION_SOURCES,
    SESSION,
    SessionKey,
)
from extproc.core.spec.sources import (
    InferencePoolSpec,
    KubernetesSource,
    NamedEndpoints,
    ServiceSpec,
    Source,
)
from extproc.core.spec.split import SplitSpec, TargetSpec
from extproc.core.spec.values import (
    LONGEST_NAME,
    PREFIX_SOURCES,
    kubernetes_name,
)

__all__ = [
    "DEFAULT_SESSION_SOURCES",
    "LONGEST_NAME",
    "PREFIX_SOURCES",
    "SESSION",
    "FilterName",
    "FilterSpec",
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
    "split_address",
]
