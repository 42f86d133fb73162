"""The decision: which endpoint serves a request, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.ledger import Lease, Ledger
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.subset import Subset
from extproc.core.fleet.token_sizes import TokenSizes
from extproc.core.request.blocks import Prompt, prompt_of
from extproc.core.request.json_document import Document
from extproc.core.request.refusals import NoEndpoints
from extproc.core.request.routing_key import is_settled, key_of, read_prefix
from extproc.core.request.session import salt_of
from extproc.core.routing.catalog import Catalog, Model
from extproc.core.routing.ejection import Ejected, Ejection
from extproc.core.routing.response_ids import ResponseIds
from extproc.core.routing.split import Split
from extproc.core.strategies import Candidate, Prediction, Query, Reason


class ResolvedRequest(NamedTuple):
    """A request as a strategy sees it: its model, adapter, prefix and place on the ring."""

    model: Model
    adapter: str
    prefix: str
    key: int | None
    snapshot: Snapshot
    """The model's endpoints that the request may go to."""
    rename: str | None = None
    """What the servers call the model, where the request calls it otherwise."""
    prompt: Prompt | None = None
    """Where the strategy wants to see it."""
    settled: bool = True
    """Of a cut body: whether what makes the request stay with a split's target was read whole."""
    session: str = ""
    """The source of the session's id that is the prefix; empty where the prefix is none."""
    requested: str = ""
    """The name by which the request calls the model."""
    answer_as: str | None = None
    """The name that the response must carry; None where it keeps the servers'."""
    holder: str | None = None
    """The address of the endpoint that has the stored response which the request refers to."""
    stores: bool = False
    """True if the request makes a response whose id the sidecar chooses."""


class Decision(NamedTuple):
    """Where a request goes; the lease on the endpoint is already taken."""

    model: str
    adapter: str
    strategy: str
    key: int | None
    reason: Reason
    hops: int
    inflight: int
    """Requests on the endpoint before this one."""
    candidates: int
    """Endpoints that could have served the request."""
    fallback: str | None
    """The address to try when the endpoint refuses."""
    rename: str | None
    """What the body must call the model; None where it does so already."""
    reads_signals: bool
    """Whether the strategy wants to know what the answer says of the endpoint's load."""
    prediction: Prediction | None
    """How much of the prompt is probably cached there; None where the strategy does not say."""
    ejected: Ejected | None
    """The chosen endpoint's ejection, if the request is its trial."""
    requested: str
    """The name by which the request calls the model: its own, an alias, an adapter, a split."""
    answer_as: str | None
    """The name for the response's `model`; None where it keeps the servers' name."""
    response_id: str | None
    """The id that the body must give the response; None where it keeps its own."""
    lease: Lease

    @property
    def address(self) -> str:
        """IP:PORT of the chosen endpoint."""
        return self.lease.endpoint.address

    @property
    def changes_body(self) -> bool:
        """True if the servers must get another body than the client sent."""
        return self.rename is not None or self.response_id is not None

    @property
    def destination(self) -> str:
        """The chosen address and the fallback's in the form of the endpoint picker protocol."""
        return self.address if self.fallback is None else f"{self.address},{self.fallback}"


class Router:
    """Answers from one catalog and one ledger.

    Synchronous on purpose: between looking at the loads and taking the lease no
    other decision can come, so concurrent requests never share one free place.
    Without `fallbacks` no decision names a second candidate. `rng` shares requests out
    that have nothing to stick to; without `signals` nobody hears what endpoints say.
    """

    def __init__(
        self,
        ledger: Ledger,
        catalog: Catalog | None = None,
        *,
        signals: Signals | None = None,
        rng: Random | None = None,
        fallbacks: bool = True,
        response_ids: ResponseIds | None = None,
    ) -> None:
        self.ledger = ledger
        self.signals = signals or Signals(lambda: 0.0, ledger)
        self.catalog = catalog or Catalog()
        """The catalog in force; `publish` puts another in its place."""
        self.ejection = Ejection(self.signals.clock)
        """Which endpoints are avoided because they failed."""
        self.ejection.set_models(self.catalog.models)
        self.token_sizes = TokenSizes()
        """How long the tokens of each model are."""
        self.context_lengths = ContextLengths()
        """How long a context each endpoint takes, as far as endpoints were asked."""
        self._rng = rng or Random(0)
        self.response_ids = response_ids or ResponseIds(self._rng.randbytes)
        """The endpoints of stored responses."""
        self._fallbacks = fallbacks
        self._followers: list[Callable[[Catalog], None]] = []

    def publish(self, catalog: Catalog) -> None:
        """Puts a catalog in force, and shows it to all who follow."""
        self.catalog = catalog
        self.ejection.set_models(catalog.models)
        for follower in self._followers:
            follower(catalog)

    def subscribe(self, follower: Callable[[Catalog], None]) -> None:
        """From now on shows each new catalog to this function too."""
        self._followers.append(follower)

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
        """What the request means here; the document is that share of it. Raises ModelNotFound.

        `cut`: the document may end anywhere.
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
            prompt = prompt_of(document, served, shown=shown, cut=cut)
        key = key_of(adapter, prefix, "" if source else salt_of(document))
        answer_as = name if rename is not None and model.spec.answer_as_requested else None
        return ResolvedRequest(
            *(model, adapter, prefix, key, snapshot, rename, prompt),
            session=source,
            requested=name,
            answer_as=answer_as,
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
        """In the first target that has an endpoint for the request, else in the first."""
        sticky, source = read_prefix(document, headers, split.key, cut=cut)
        settled = is_settled(sticky, document, split.key, source)
        first: ResolvedRequest | None = None
        for target in split.order(sticky, self._rng):
            place = self.resolve(target, document, headers, subset, shown=shown, cut=cut)
            served = place.adapter or place.model.spec.served
            place = place._replace(rename=served, settled=settled)
            if place.snapshot.eligible(place.adapter):
                return place
            first = first or place
        assert first is not None, "a split has targets"
        return first

    def endpoint(self, model: str, address: str) -> Endpoint:
        """The endpoint of a model at an address, be it known or not."""
        found = self.catalog.models.get(model)
        known = found.snapshot.endpoints if found else ()
        return next((e for e in known if e.address == address), Endpoint(address, address))

    def order(self, resolved: ResolvedRequest, query: Query) -> Iterator[Candidate]:
        """The model's eligible endpoints, the best first, at this moment's loads."""
        return resolved.model.strategy.rank(query, resolved.snapshot, self.ledger.loads)

    def decide(self, resolved: ResolvedRequest) -> Decision:
        """Picks an endpoint and takes a lease on it. Raises NoEndpoints."""
        spec = resolved.model.spec
        strategy = resolved.model.strategy
        query = self._query(resolved)
        ejection, spared = self.ejection, resolved
        if ejection.ejected:
            snapshot = ejection.without_ejected(spec.name, resolved.snapshot, resolved.adapter)
            spared = resolved._replace(snapshot=snapshot)
        order = self.order(spared, query)
        if resolved.holder is not None:
            order = _holder_first(order, resolved.holder)
        best = next(order, None)
        if best is None:
            restricted = resolved.snapshot is not resolved.model.snapshot
            raise NoEndpoints(spec.name, resolved.adapter, restricted=restricted)
        second = next(order, None) if self._fallbacks else None
        fallback = second.endpoint.address if second else None
        ejected = None
        if ejection.ejected:
            ejected = ejection.chosen(best.endpoint.address)
            if fallback is None and self._fallbacks:
                others = resolved.snapshot.eligible(resolved.adapter)
                fallback = ejection.last_resort(others, best.endpoint.address)
        strategy.chosen(query, best.endpoint)
        inflight = self.ledger.loads.get(best.endpoint.address, 0)
        lease = self.ledger.acquire(spec.name, best.endpoint)
        prediction = best.prediction
        if prediction is not None:
            uncached = prediction.prompt_tokens - prediction.cached_tokens
            lease.prefill = self.signals.backlog.add(best.endpoint.address, uncached)
        return Decision(
            model=spec.name,
            adapter=resolved.adapter,
            strategy=spec.load_balancing.strategy,
            key=resolved.key,
            reason=best.reason,
            hops=best.hops,
            inflight=inflight,
            candidates=len(spared.snapshot.eligible(resolved.adapter)),
            fallback=fallback,
            rename=resolved.rename,
            reads_signals=strategy.reads_signals,
            prediction=prediction,
            ejected=ejected,
            requested=resolved.requested,
            answer_as=resolved.answer_as,
            response_id=self.response_ids.assign(best.endpoint.address)
            if resolved.stores
            else None,
            lease=lease,
        )

    def _query(self, resolved: ResolvedRequest) -> Query:
        per_token = self.token_sizes.of(resolved.model.spec.name)
        by_session = resolved.session != ""
        return Query(resolved.adapter, resolved.key, resolved.prompt, per_token, by_session)


def _holder_first(order: Iterator[Candidate], address: str) -> Iterator[Candidate]:
    """Return the same order, but first the endpoint at this address, if it is among them."""
    candidates = list(order)
    for position, candidate in enumerate(candidates):
        if candidate.endpoint.address == address:
            del candidates[position]
            candidates.insert(0, candidate._replace(reason=Reason.RESPONSE_ID, hops=0))
            break
    return iter(candidates)
