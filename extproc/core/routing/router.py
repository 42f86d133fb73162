"""The router: from a request's model name to a resolved request, and from that to a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from random import Random

from extproc.core.fleet.ejection import Ejected
from extproc.core.fleet.endpoint import Snapshot
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease
from extproc.core.fleet.subset import Subset
from extproc.core.request.blocks import prompt_of
from extproc.core.request.json_document import Document
from extproc.core.request.refusals import NoEndpoints
from extproc.core.request.routing_key import prefix_is_final, read_prefix, ring_key
from extproc.core.request.session import salt_of
from extproc.core.routing.catalog import Catalog, Model
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.split import Split
from extproc.core.strategies import Candidate, Query, Reason, Strategy


class Router:
    """Resolves and decides requests by one catalog and the state of the fleet.

    It is synchronous on purpose: no other decision can happen between reading the loads and taking
    the lease. So concurrent requests never count on the same free capacity.
    """

    def __init__(
        self,
        fleet: Fleet,
        catalog: Catalog | None = None,
        *,
        rng: Random | None = None,
        fallbacks: bool = True,
        owns_fleet: bool = True,
    ) -> None:
        """Start with this catalog, or with an empty one.

        With `fallbacks` decisions name a second candidate. `rng` distributes the requests of a
        split that have no key. A router that does not own its fleet leaves the fleet's models as
        another router set them.
        """
        self.fleet = fleet
        self.catalog = catalog or Catalog()
        """The catalog in force; `publish` replaces it."""
        self._rng = rng or Random(0)
        self._fallbacks = fallbacks
        self._subscribers: list[Callable[[Catalog], None]] = []
        # Every decision reads these.
        self._loads = fleet.ledger.loads
        self._ejection = fleet.ejection
        self._token_sizes = fleet.signals.token_sizes
        self._response_ids = fleet.response_ids
        if owns_fleet:
            fleet.set_models(self.catalog.snapshots())

    def publish(self, catalog: Catalog) -> None:
        """Put a catalog in force, and pass it to all subscribers."""
        self.catalog = catalog
        self.fleet.set_models(catalog.snapshots())
        for subscriber in self._subscribers:
            subscriber(catalog)

    def subscribe(self, subscriber: Callable[[Catalog], None]) -> None:
        """Call this function with each catalog that is published from now on."""
        self._subscribers.append(subscriber)

    def resolve(
        self,
        name: str,
        document: Document | None,
        headers: Mapping[str, str],
        subset: Subset | None = None,
        *,
        shown: float = 1.0,
        cut: bool = False,
    ) -> ResolvedRequest:
        """Resolve a request by its model name. Raises ModelNotFound.

        `shown` is the share of the body that the document was read from. `cut` means that the
        document may end anywhere.
        """
        split = self.catalog.splits.get(name)
        if split is not None:
            resolved = self._resolve_split(split, document, headers, subset, shown, cut)
            renames = split.answer_as_requested and resolved.rename != name
            return resolved._replace(requested=name, answer_as=name if renames else None)
        model, adapter = self.catalog.resolve(name)
        spec = model.spec.load_balancing.prefix_hash
        prefix, source = read_prefix(document, headers, spec, cut=cut)
        snapshot = model.snapshot if subset is None else model.snapshot.restricted(subset)
        served = adapter or model.spec.served
        rename = None if served == name else served
        prompt = None
        if document is not None and model.strategy.reads_prompts:
            prompt = prompt_of(document, served, share=shown, cut=cut)
        key = ring_key(adapter, prefix, "" if source else salt_of(document))
        answer_as = name if rename is not None and model.spec.answer_as_requested else None
        return ResolvedRequest(
            *(model, adapter, prefix, key, snapshot, rename, prompt),
            session=source,
            requested=name,
            answer_as=answer_as,
            subset=subset,
        )

    def _resolve_split(
        self,
        split: Split,
        document: Document | None,
        headers: Mapping[str, str],
        subset: Subset | None,
        shown: float,
        cut: bool,
    ) -> ResolvedRequest:
        """Resolve to the first target that has an endpoint for the request, else to the first."""
        sticky, source = read_prefix(document, headers, split.key, cut=cut)
        settled = prefix_is_final(sticky, document, split.key, source)
        first: ResolvedRequest | None = None
        for target in split.order(sticky, self._rng):
            resolved = self.resolve(target, document, headers, subset, shown=shown, cut=cut)
            served = resolved.adapter or resolved.model.spec.served
            resolved = resolved._replace(rename=served, settled=settled)
            if resolved.snapshot.eligible(resolved.adapter):
                return resolved
            first = first or resolved
        assert first is not None, "a split has targets"
        return first

    def order(self, resolved: ResolvedRequest, query: Query) -> Iterator[Candidate]:
        """Yield the eligible endpoints by the current loads, best first."""
        return resolved.model.strategy.rank(query, resolved.snapshot, self._loads)

    def current(self, resolved: ResolvedRequest) -> ResolvedRequest:
        """Return an earlier resolved request with the present state of its model.

        If the model was removed, resolve the name that the client sent again. Raises ModelNotFound
        if no model has it.
        """
        model = self.catalog.models.get(resolved.model.spec.name)
        if model is None:
            return self._again(resolved)
        if model is resolved.model:
            return resolved
        subset = resolved.subset
        snapshot = model.snapshot if subset is None else model.snapshot.restricted(subset)
        return resolved._replace(model=model, snapshot=snapshot)

    def _again(self, earlier: ResolvedRequest) -> ResolvedRequest:
        """Resolve the name of an earlier request as if it came now, without its body.

        What was read from the body stays as far as it means the same for this model. Otherwise it
        is unknown, as for a body that Envoy does not show.
        """
        again = self.resolve(earlier.requested, None, {}, earlier.subset)
        spec, before = again.model.spec, earlier.model.spec
        if (again.adapter, spec.load_balancing.prefix_hash) == (
            earlier.adapter,
            before.load_balancing.prefix_hash,
        ):
            prefix, key, session = earlier.prefix, earlier.key, earlier.session
            again = again._replace(prefix=prefix, key=key, session=session)
        # Blocks of the prompt are hashed with the servers' name for the model.
        is_same_owner = (again.adapter or spec.served) == (earlier.adapter or before.served)
        if is_same_owner and again.model.strategy.reads_prompts:
            again = again._replace(prompt=earlier.prompt)
        stores = earlier.stores and spec.response_ids
        return again._replace(holder=earlier.holder, stores=stores)

    def without_ejected(self, resolved: ResolvedRequest) -> ResolvedRequest:
        """Return the request without the endpoints that are ejected, unless all are."""
        if not self._ejection.ejected:
            return resolved
        model, snapshot = resolved.model.spec.name, resolved.snapshot
        remaining = self._ejection.without_ejected(model, snapshot, resolved.adapter)
        return resolved._replace(snapshot=remaining)

    def available(self, model: Model) -> Snapshot:
        """Return the model's endpoints without those that are ejected, unless all are."""
        if not self._ejection.ejected:
            return model.snapshot
        return self._ejection.without_ejected(model.spec.name, model.snapshot, "")

    def homes(self, resolved: ResolvedRequest) -> tuple[str, ...]:
        """Return the endpoints where the request is warm; none if it does not matter."""
        if resolved.holder is not None:
            return (resolved.holder,)
        return resolved.model.strategy.homes(self._query(resolved), resolved.snapshot)

    def decide(self, resolved: ResolvedRequest, among: Set[str] | None = None) -> Decision:
        """Pick an endpoint and take a lease on it. Raises NoEndpoints.

        `among` has the addresses of endpoints that are eligible and in service. None means all. A
        request that refers to a stored response ignores it.
        """
        if resolved.holder is not None:
            among = None
        query = self._query(resolved)
        allowed = in_service = self.without_ejected(resolved)
        if among is not None:
            subset = Subset(frozenset(among), frozenset())
            allowed = allowed._replace(snapshot=allowed.snapshot.restricted(subset))
        order = self.order(allowed, query)
        if resolved.holder is not None:
            order = _holder_first(order, resolved.holder)
        best = next(order, None)
        if best is None:
            restricted = resolved.snapshot is not resolved.model.snapshot
            raise NoEndpoints(resolved.model.spec.name, resolved.adapter, restricted=restricted)
        second = next(order, None) if self._fallbacks else None
        fallback = second.endpoint.address if second else None
        if fallback is None and among is not None and self._fallbacks:
            fallback = self._least_loaded(in_service, best.endpoint.address)
        ejected = None
        if self._ejection.ejected:
            ejected = self._chosen(best.endpoint.address)
            if fallback is None and self._fallbacks:
                others = resolved.snapshot.eligible(resolved.adapter)
                fallback = self._ejection.last_resort(others, best.endpoint.address)
        return self._take(best, query, allowed, fallback, ejected)

    def _take(
        self,
        best: Candidate,
        query: Query,
        resolved: ResolvedRequest,
        fallback: str | None,
        ejected: Ejected | None,
    ) -> Decision:
        """Take a lease on the best candidate's endpoint, and return the decision."""
        spec, strategy = resolved.model.spec, resolved.model.strategy
        endpoint = best.endpoint
        inflight = self._loads.get(endpoint.address, 0)
        lease = self._send(spec.name, best, strategy, query)
        return Decision(
            address=endpoint.address,
            model=spec.name,
            adapter=resolved.adapter,
            strategy=spec.load_balancing.strategy,
            key=resolved.key,
            reason=best.reason,
            hops=best.hops,
            inflight=inflight,
            candidates=len(resolved.snapshot.eligible(resolved.adapter)),
            fallback=fallback,
            rename=resolved.rename,
            reads_signals=strategy.reads_signals,
            prediction=best.prediction,
            ejected=ejected,
            requested=resolved.requested,
            answer_as=resolved.answer_as,
            response_id=self._response_ids.assign(endpoint.address) if resolved.stores else None,
            lease=lease,
        )

    def _least_loaded(self, resolved: ResolvedRequest, chosen: str) -> str | None:
        """Return the endpoint with the least load other than the chosen one."""
        eligible = resolved.snapshot.eligible(resolved.adapter)
        others = [one.address for one in eligible if one.address != chosen]
        return min(others, key=lambda address: self._loads.get(address, 0), default=None)

    def _chosen(self, address: str) -> Ejected | None:
        """Return the chosen endpoint's ejection; after the ejection time, a trial starts."""
        return self._ejection.chosen(address)

    def _send(self, model: str, best: Candidate, strategy: Strategy, query: Query) -> Lease:
        """Record the request, and return its lease."""
        return self.fleet.send(model, best.endpoint, strategy.describe(query, best))

    def _query(self, resolved: ResolvedRequest) -> Query:
        per_token = self._token_sizes.of(resolved.model.spec.name)
        by_session = resolved.session != ""
        return Query(resolved.adapter, resolved.key, resolved.prompt, per_token, by_session)


def _holder_first(order: Iterator[Candidate], address: str) -> Iterator[Candidate]:
    """Return the same order, but first the endpoint at this address, if it is in it."""
    candidates = list(order)
    for position, candidate in enumerate(candidates):
        if candidate.endpoint.address == address:
            del candidates[position]
            candidates.insert(0, candidate._replace(reason=Reason.RESPONSE_ID, hops=0))
            break
    return iter(candidates)
