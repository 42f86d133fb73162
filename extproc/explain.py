"""Explains a decision: runs a request through the same steps as `serve`, and records them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random

from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.verdict import Listed, Passed
from extproc.core.fleet.ejection import Ejected
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease, Ledger
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.flow_control.headers import tenant_hash
from extproc.core.request.refusals import Refusal
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import Candidate, Query, Strategy, build
from extproc.core.strategies.prefix_hash import PrefixHash
from extproc.explanation import ExplainedCandidate, ExplainedFlow, ExplainedPrompt, Explanation

WHOLE_BYTES = 8 * 1024 * 1024
"""The longest body that the recommended Envoy configuration shows whole. The sidecar reads the head
(HEAD_LIMIT) of a longer one."""

_UNDECIDED: Mapping[type, dict[str, object]] = {
    Listed: {
        "status": 200,
        "code": "models_listed",
        "message": "The sidecar itself answers with the models.",
    },
    Passed: {
        "status": 200,
        "code": "passed",
        "message": "Envoy's other routes serve this path, without a decision.",
    },
}


class _RecordingRouter(Router):
    """A router that records its last decision, with all candidates."""

    resolved: ResolvedRequest
    ranking: list[Candidate]

    def order(self, resolved: ResolvedRequest, query: Query) -> Iterator[Candidate]:
        self.resolved = resolved
        self.ranking = list(super().order(resolved, query))
        return iter(self.ranking)


class _PreviewRouter(_RecordingRouter):
    """A router that decides by the state of a live one, and changes nothing there."""

    def __init__(self, live: Router) -> None:
        super().__init__(live.fleet, live.catalog, rng=Random(), owns_fleet=False)

    def order(self, resolved: ResolvedRequest, query: Query) -> Iterator[Candidate]:
        strategy = resolved.model.strategy.preview()
        self.resolved = resolved
        self.ranking = list(strategy.rank(query, resolved.snapshot, self.fleet.ledger.loads))
        return iter(self.ranking)

    def _chosen(self, address: str) -> Ejected | None:
        return self.fleet.ejection.ejected.get(address)

    def _send(self, model: str, best: Candidate, strategy: Strategy, query: Query) -> Lease:
        return Ledger().acquire(model, best.endpoint)


def shown(body: bytes) -> bytes:
    """Return what the sidecar reads of this body behind the recommended Envoy configuration."""
    return body if len(body) <= WHOLE_BYTES else body[:HEAD_LIMIT]


def explain(
    spec: ModelsSpec,
    head: bytes,
    *,
    length: int,
    path: str,
    headers: Mapping[str, str],
    inflight: Mapping[str, int],
) -> Explanation:
    """Run one request through the conversation that `serve` runs, and explain the decision.

    `head` is the part that Envoy shows of a body of `length` bytes. `inflight` has the assumed
    loads by address.
    """
    fleet = _fleet(inflight)
    router = _RecordingRouter(fleet)
    router.publish(revise(Catalog(), spec.models, lambda one: build(one, Random(), fleet.signals)))
    return _explained(router, head, length, path, headers)


def explain_now(
    live: Router,
    body: bytes,
    path: str,
    headers: Mapping[str, str],
    *,
    flow: FlowControl | None = None,
    pass_unknown: bool = False,
) -> Explanation:
    """Explain what a router that serves requests would decide now, and change nothing."""
    router, length = _PreviewRouter(live), len(body)
    headers = {name: value for name, value in headers.items() if not name.startswith(":")}
    found = _explained(router, shown(body), length, path, headers, pass_unknown=pass_unknown)
    if found.flow_control is None or flow is None:
        return found
    model = live.catalog.models[router.resolved.model.spec.name]
    model_flow = flow.of(model.spec.name)
    requests = model_flow.queue.waiting
    spec = model.spec.flow_control
    assert spec is not None
    sent = {name.lower(): value for name, value in headers.items()}
    tenant = tenant_hash(_first(sent, spec.tenant_headers))
    most = flow.most(model, _first(sent, spec.objective_headers), tenant)
    waits = requests > 0 or not any(
        flow.room.share(model_flow, model, one.endpoint.address) < most for one in router.ranking
    )
    return replace(found, flow_control=ExplainedFlow(waits, requests))


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the value of the first of these headers that has one."""
    return next((headers[name] for name in names if headers.get(name)), "")


def _explained(
    router: _RecordingRouter,
    head: bytes,
    length: int,
    path: str,
    headers: Mapping[str, str],
    *,
    pass_unknown: bool = False,
) -> Explanation:
    conversation = Conversation(router, Random(), pass_unknown=pass_unknown)
    # Clients send the body's length, also if Envoy does not show all of it.
    pseudo = {":method": "POST", ":path": path, "content-length": str(length), **headers}
    raw = {name.lower(): value.encode() for name, value in pseudo.items()}
    inflight = dict(router.fleet.ledger.loads)  # without this request
    conversation.receive(Event(Kind.REQUEST_HEADERS, headers=raw))
    conversation.receive(Event(Kind.REQUEST_BODY, body=head, end_of_stream=len(head) == length))
    verdict = conversation.verdict
    if isinstance(verdict, Refusal):
        error = {"status": verdict.status, "code": verdict.code, "message": verdict.message}
        return Explanation(shown_bytes=len(head), body_bytes=length, error=error)
    if isinstance(verdict, Listed | Passed):
        error = _UNDECIDED[type(verdict)]
        return Explanation(shown_bytes=len(head), body_bytes=length, error=error)
    assert isinstance(verdict, Decision)
    explanation = _explanation(router, verdict, inflight)
    return replace(explanation, shown_bytes=len(head), body_bytes=length)


def _fleet(inflight: Mapping[str, int]) -> Fleet:
    fleet = Fleet()
    for address, count in inflight.items():
        for _ in range(count):
            fleet.ledger.acquire("", Endpoint(address, address))
    return fleet


def _prompt(resolved: ResolvedRequest) -> ExplainedPrompt | None:
    prompt, spec = resolved.prompt, resolved.model.spec.load_balancing
    if prompt is None:
        return None
    if prompt.system_hash is not None and spec.prefix_hash.header is None and not resolved.session:
        home_by = "the system prompt"
    else:
        home_by = "chance" if resolved.key is None else "the hash"
    return ExplainedPrompt(prompt.bytes, prompt.block_count, prompt.system_blocks, home_by)


def _flow(resolved: ResolvedRequest, inflight: Mapping[str, int]) -> ExplainedFlow | None:
    """Return what is known of flow control without a running sidecar."""
    spec = resolved.model.spec.flow_control
    if spec is None or spec.max_inflight is None:
        return None if spec is None else ExplainedFlow(None)
    loads = [inflight.get(one.address, 0) for one in resolved.snapshot.eligible(resolved.adapter)]
    return ExplainedFlow(all(load >= spec.max_inflight for load in loads))


def _explanation(
    router: _RecordingRouter, decision: Decision, inflight: Mapping[str, int]
) -> Explanation:
    resolved = router.resolved
    strategy = resolved.model.strategy
    bound = None
    if isinstance(strategy, PrefixHash) and resolved.key is not None:
        bound = strategy.bound(resolved.model.snapshot.eligible(resolved.adapter), inflight)
    return Explanation(
        model=decision.model,
        adapter=decision.adapter,
        rename=decision.rename,
        strategy=decision.strategy,
        reads_signals=decision.reads_signals,
        endpoint=decision.address,
        reason=decision.reason,
        prefix=resolved.prefix,
        prefix_hash=None if decision.key is None else f"{decision.key:016x}",
        session=resolved.session or None,
        prompt=_prompt(resolved),
        bound=None if bound is None else bound.numerator / bound.denominator,
        flow_control=_flow(resolved, inflight),
        candidates=[
            ExplainedCandidate(
                candidate.endpoint.address,
                inflight.get(candidate.endpoint.address, 0),
                candidate.hops,
                candidate.reason,
                candidate.prediction.hit if candidate.prediction else None,
            )
            for candidate in router.ranking
        ],
    )
