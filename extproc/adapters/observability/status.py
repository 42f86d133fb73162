"""The data of the status page. It is computed when the page asks for it, and never otherwise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from extproc import __version__
from extproc.adapters.observability.decision_log import Recorded
from extproc.adapters.observability.ring_arcs import arcs, version_of, walk
from extproc.adapters.observability.state import EndpointState, ModelState
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.conversation.verdict import Listed, Passed
from extproc.core.fleet.fleet import Fleet
from extproc.core.request.refusals import Refusal
from extproc.core.routing.catalog import Catalog, Model
from extproc.core.routing.decision import Decision
from extproc.core.schema import UNKNOWN_MODEL
from extproc.core.strategies import Reason
from extproc.core.strategies.prefix_hash import PrefixHash

Json = dict[str, Any]


class StatusReport:
    """Reads what the status page shows.

    `states` returns the models of `/debug/state`, so that both show the same numbers. It gets the
    name of the only model whose signals are needed.
    """

    def __init__(
        self,
        fleet: Fleet,
        catalog: Callable[[], Catalog],
        telemetry: Telemetry,
        states: Callable[[str], Mapping[str, ModelState]],
        why_not_ready: Callable[[], str | None],
        shared_state: Callable[[], Mapping[str, object]] | None = None,
    ) -> None:
        self._fleet = fleet
        self._catalog = catalog
        self._telemetry = telemetry
        self._states = states
        self._why_not_ready = why_not_ready
        self._shared_state = shared_state

    def document(self, wanted: str, after: int) -> Json:
        """Return the state, with the endpoints of the wanted model, else of the first one.

        It has the decisions with a number above `after`.
        """
        catalog, telemetry = self._catalog(), self._telemetry
        chosen = wanted or next(iter(catalog.models), "")
        states = self._states(chosen)
        if chosen not in states:
            chosen = next(iter(states), "")
        requests = _requests(telemetry.requests)
        shared = {} if self._shared_state is None else {"shared_state": self._shared_state()}
        return {
            "version": __version__,
            "not_ready": self._why_not_ready(),
            **_totals(states),
            "requests": {model: dict(counts) for model, counts in requests.items()},
            "durations": _durations(telemetry),
            "configuration": {
                **telemetry.configuration.state,
                "last_error": telemetry.configuration.last_error,
            },
            **shared,
            "models": [
                self._model(name, state, catalog.models.get(name), requests[name])
                for name, state in states.items()
            ],
            "chosen": self._chosen(chosen, states, catalog),
            "decisions": {
                "total": telemetry.decisions.total,
                "new": [self._decision(one, catalog) for one in telemetry.decisions.after(after)],
            },
        }

    def ring(self, name: str) -> Json | None:
        """Return the arcs of a model's ring; None if there is no such model."""
        model = self._catalog().models.get(name)
        if model is None:
            return None
        return {"version": version_of(model.snapshot), **arcs(model.snapshot)}

    def _model(
        self, name: str, state: ModelState, model: Model | None, requests: Counter[str]
    ) -> Json:
        endpoints = state["endpoints"]
        # What /debug/state has of a model besides its endpoints, such as a queue, is shown, too.
        found: Json = {key: value for key, value in state.items() if key != "endpoints"}
        found |= {
            "name": name,
            "states": Counter(one["state"] for one in endpoints),
            "inflight": sum(one["inflight"] for one in endpoints),
            "routed": requests["routed"],
            "prompts": self._prompts(name),
        }
        if any("inflight_fleet" in one for one in endpoints):
            found["inflight_fleet"] = sum(one.get("inflight_fleet", 0) for one in endpoints)
        source = None if model is None else model.spec.source
        age = 0.0 if source is None else self._telemetry.age(source)
        return found | {"source": source and str(source), "discovery_age_seconds": round(age, 3)}

    def _prompts(self, model: str) -> Json | None:
        totals = self._telemetry.prompts.totals(model)
        return None if totals is None else totals._asdict()

    def _chosen(self, name: str, states: Mapping[str, ModelState], catalog: Catalog) -> Json | None:
        """Return one model's endpoints; None if there is no model."""
        if name not in states:
            return None
        model, endpoints = catalog.models.get(name), states[name]["endpoints"]
        found: Json = {"name": name, "endpoints": list(self._endpoints(name, endpoints, model))}
        if model is not None:
            found["ring_version"] = version_of(model.snapshot)
            found["bound"] = _bound(model, self._fleet.ledger.loads)
        return found

    def _endpoints(
        self, name: str, endpoints: Sequence[EndpointState], model: Model | None
    ) -> Iterator[Json]:
        addresses = [one["address"] for one in endpoints]
        signals, ejected = self._fleet.signals, self._fleet.ejection.ejected
        now = signals.clock()
        starting = {} if model is None else _starting(model, addresses, self._fleet)
        slowness = signals.slowness(addresses).prompts
        predicted = self._predicted(name)
        for one in endpoints:
            address = one["address"]
            row: Json = {**one}
            if address in ejected:
                left = max(0.0, ejected[address].until - now)
                row["ejection"] = {"left": round(left, 1), "on_trial": ejected[address].on_trial}
            if address in starting:
                row["slow_start"] = round(starting[address], 3)
            if address in slowness:
                row["slowness"] = round(slowness[address], 2)
            if address in predicted:
                row["predicted"] = round(predicted[address], 4)
            yield row

    def _predicted(self, model: str) -> dict[str, float]:
        """Return the predicted hit rates of the last decisions, by endpoint."""
        prompt, cached = defaultdict[str, float](float), defaultdict[str, float](float)
        for recorded in self._telemetry.decisions.after(0):
            verdict = recorded.verdict
            if isinstance(verdict, Decision) and verdict.model == model and verdict.prediction:
                prompt[verdict.address] += verdict.prediction.prompt_tokens
                cached[verdict.address] += verdict.prediction.cached_tokens
        return {address: cached[address] / tokens for address, tokens in prompt.items() if tokens}

    def _decision(self, recorded: Recorded, catalog: Catalog) -> Json:
        verdict = recorded.verdict
        found: Json = {
            "number": recorded.number,
            "age_seconds": round(recorded.age_seconds, 3),
            "microseconds": round(recorded.seconds * 1e6, 1),
        }
        if isinstance(verdict, Decision):
            return found | _decided(verdict, catalog)
        if isinstance(verdict, Refusal):
            # The message may quote the client, so it stays in the log.
            return found | {"outcome": verdict.code, "model": verdict.model}
        outcomes = {Listed: "models_listed", Passed: "passed"}
        return found | {"outcome": outcomes[type(verdict)], "model": UNKNOWN_MODEL}


def _totals(states: Mapping[str, ModelState]) -> Json:
    """Return the requests in flight. Several models may list an address, which has one load."""
    endpoints = {one["address"]: one for state in states.values() for one in state["endpoints"]}
    found: Json = {"inflight": sum(one["inflight"] for one in endpoints.values())}
    if any("inflight_fleet" in one for one in endpoints.values()):
        found["inflight_fleet"] = sum(one.get("inflight_fleet", 0) for one in endpoints.values())
    return found


def _requests(counts: Mapping[tuple[str, ...], int]) -> defaultdict[str, Counter[str]]:
    """Return the requests of each model by outcome."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (model, _, outcome), count in counts.items():
        found[model][outcome] += count
    return found


def _durations(telemetry: Telemetry) -> Json:
    durations = telemetry.durations
    return {"bounds": durations.bounds, "counts": durations.counts, "sum": durations.sum}


def _bound(model: Model, loads: Mapping[str, int]) -> Json | None:
    """Return the load bound of a model without adapters; None if its strategy has none now."""
    if not isinstance(model.strategy, PrefixHash):
        return None
    bound = model.strategy.bound(model.snapshot.endpoints, loads)
    if bound is None:
        return None
    return {"exact": bound.numerator / bound.denominator, "requests": bound.max_inflight}


def _starting(model: Model, addresses: Sequence[str], fleet: Fleet) -> dict[str, float]:
    """Return the share of its load that each new endpoint may have."""
    if not model.strategy.reads_signals:
        return {}
    seconds = model.spec.load_balancing.signals.slow_start_seconds
    return fleet.signals.starting(addresses, seconds)


def _decided(decision: Decision, catalog: Catalog) -> Json:
    prediction, key = decision.prediction, decision.key
    found: Json = {
        "outcome": "routed",
        "model": decision.model,
        "adapter": decision.adapter,
        "strategy": decision.strategy,
        "endpoint": decision.address,
        "reason": decision.reason,
        "hops": decision.hops,
        "inflight": decision.inflight,
        "candidates": decision.candidates,
        "fallback": decision.fallback,
        "key": None if key is None else f"{key:016x}",
        "predicted": None if prediction is None else round(prediction.hit, 4),
        "waited": None if decision.wait is None else round(decision.wait.seconds, 3),
    }
    model = catalog.models.get(decision.model)
    if key is not None and model is not None:
        passed = decision.hops if decision.reason is Reason.BOUND else 0
        found["walk"] = walk(model.snapshot, key, decision.adapter, passed + 1)
    return found
