"""The attributes of a decision's span.

`gen_ai.*`, `server.*`, `error.type` and `http.*` are OpenTelemetry's semantic conventions. Names
that begin with `extproc.` are those of the decision's dynamic metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision
from extproc.core.schema import UNKNOWN_MODEL, split_address

Attributes = Mapping[str, str | int | float]


def of_decision(decision: Decision) -> Attributes:
    """Return the attributes of a decision."""
    host, port = split_address(decision.address)
    found: dict[str, str | int | float] = {
        "gen_ai.request.model": decision.requested,
        "server.address": host,
        "server.port": port,
        "extproc.model": decision.model,
        "extproc.strategy": decision.strategy,
        "extproc.endpoint": decision.address,
        "extproc.reason": str(decision.reason),
        "extproc.inflight": decision.inflight,
        "extproc.candidates": decision.candidates,
        "extproc.hops": decision.hops,
    }
    if decision.adapter:
        found["extproc.adapter"] = decision.adapter
    if decision.key is not None:
        found["extproc.prefix_hash"] = f"{decision.key:016x}"
    if decision.prediction is not None:
        found["extproc.predicted_hit"] = round(decision.prediction.hit, 4)
    if decision.wait is not None:
        found["extproc.queued_ms"] = round(1000 * decision.wait.seconds)
        found["extproc.priority"] = decision.wait.priority
        if decision.wait.tenant:
            found["extproc.tenant_hash"] = decision.wait.tenant
    if decision.fallback is not None:
        found["extproc.fallback"] = decision.fallback
    return found


def of_refusal(refusal: Refusal) -> Attributes:
    """Return the attributes of a refusal."""
    found: dict[str, str | int | float] = {
        "error.type": refusal.code,
        "http.response.status_code": refusal.status,
    }
    if refusal.model != UNKNOWN_MODEL:
        found["gen_ai.request.model"] = found["extproc.model"] = refusal.model
    return found
