"""The sidecars of a simulated fleet: the product's own router, ledger, signals and strategies.

As in production, each sidecar counts its own requests and reads the engines' metrics itself. It
knows the others' requests only if they share their state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random

from extproc.adapters.vllm.schedule import plans
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.weights import WEIGHTS, Weights
from extproc.core.flow_control.flow_control import TICK_SECONDS, FlowControl
from extproc.core.flow_control.waiter import Arrival, Released, Waiter
from extproc.core.request.refusals import Refusal
from extproc.core.routing.catalog import revise
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.core.schema import FlowControlSpec, LoadBalancingSpec, ModelSpec
from extproc.core.strategies import Strategy, build
from extproc.core.strategies.prefix_cache import PrefixCache
from extproc.lab import oracle, published_rules
from extproc.lab.engine.replica import Replica
from extproc.lab.oracle.admission import StepAdmission
from extproc.lab.oracle.strategy import Oracle
from extproc.lab.oracle.truth import Truth
from extproc.lab.published_rules.saturation_gate import SaturationGate
from extproc.lab.simulation.engines import Engines
from extproc.lab.simulation.prompts import SHIPPED, Prompts, Shown
from extproc.lab.simulation.scraping import Scraping
from extproc.lab.simulation.timeline import Timeline
from extproc.lab.workloads.text import document
from extproc.lab.workloads.workload import Api, Turn

MODEL = "simulated"

SESSION_HEADER = "x-session"
"""Header that clients send with each request to name the session: `Header:x-session`."""


@dataclass(frozen=True)
class Routing:
    """Configuration of the sidecars."""

    load_balancing: LoadBalancingSpec

    adapters: Sequence[str] = ()
    """LoRA adapters that every engine has."""

    addresses: Sequence[str] = ()
    """Addresses of the engines, which determine their positions on the ring. If empty, they are
    made up.
    """

    shown: Shown = SHIPPED
    """The part of a body that Envoy shows."""

    published_rule: str = ""
    """A published rule or the oracle, known to the laboratory only, instead of the strategy."""

    weights: Weights | None = None
    """Other weights for PrefixCache, instead of the strategy."""

    flow_control: FlowControlSpec | None = None
    """Flow control; None to send each request at once."""

    saturation_gate: bool = False
    """True if llm-d's rule decides when requests are dispatched, instead of flow control."""

    step_admission: bool = False
    """True if an admission that knows the engines does so, instead of flow control."""

    @property
    def strategy(self) -> str:
        """Name of the strategy or rule."""
        return self.published_rule or self.load_balancing.strategy

    def endpoints(self, replicas: int) -> list[str]:
        """Return the addresses of this number of engines."""
        made_up = (f"10.0.{one // 250}.{one % 250 + 1}:8000" for one in range(replicas))
        return list(self.addresses) or list(made_up)


class Sidecar:
    """A sidecar in front of all engines."""

    def __init__(
        self,
        timeline: Timeline,
        replicas: Sequence[Replica],
        routing: Routing,
        seed: str,
        absent: Collection[int] = (),
        prompts: Prompts | None = None,
        truth: Truth | None = None,
        engines: Engines | None = None,
    ) -> None:
        """`replicas` may change during the run. Engines in `absent` join later.

        Sidecars in front of the same engines need the same `prompts`: one text, one hash. The
        oracle needs `truth`, and the admission that knows the engines needs them.
        """
        self._timeline = timeline
        self._spec = routing.load_balancing
        self._replicas = replicas
        addresses = routing.endpoints(len(replicas))
        self._numbers = dict(zip(addresses, range(len(replicas)), strict=True))
        rng = Random(f"strategy {seed}")
        self._ledger = Ledger()
        self._signals = Signals(timeline.clock, self._ledger, routing.weights or WEIGHTS)
        self.fleet = Fleet(ledger=self._ledger, signals=self._signals)
        """The sidecar's state of the fleet."""
        self._router = Router(self.fleet, rng=rng, fallbacks=False)
        self._model = ModelSpec(
            name=MODEL,
            endpoints=tuple(addresses),
            adapters=tuple(routing.adapters),
            loadBalancing=routing.load_balancing,
            flowControl=routing.flow_control,
        )
        self.flow = self._flow(routing, engines)
        """The sidecar's flow control."""
        self.flow.wake = self._wake
        self._is_woken = self._ticks = False
        self._due_at = inf
        peak = max(one.profile.prefill_tokens_per_second for one in replicas)
        rule = oracle.rule_of(routing.published_rule)
        self._make = (
            partial(_make, routing, rng=rng, signals=self._signals, peak=peak)
            if truth is None
            else lambda _: Oracle(rule, truth, self._numbers, rng)
        )
        self._prompts = prompts or Prompts(routing.shown)
        readings = Random(f"readings {seed}")
        self._scraping = Scraping(timeline, self._signals, self._ledger.loads, readings)
        self.follow([number for number in range(len(replicas)) if number not in absent])

    def _flow(
        self, routing: Routing, engines: Engines | None
    ) -> FlowControl | SaturationGate | StepAdmission:
        """Return the product's flow control, or what replaces it."""
        spec, clock = routing.flow_control, self._timeline.clock
        if spec is not None:
            priorities = {one.name: one.priority for one in spec.classes}
            if routing.saturation_gate:
                return SaturationGate(self._router, clock, priorities, spec.max_wait_seconds)
            if routing.step_admission and engines is not None:
                return StepAdmission(self._router, engines, list(self._numbers), priorities)
        return FlowControl(self._router, clock)

    def follow(self, present: Collection[int]) -> None:
        """Set the engines that discovery reports, by number."""
        there = tuple(address for address, number in self._numbers.items() if number in present)
        model = self._model.model_copy(update={"endpoints": there})
        self._router.publish(revise(self._router.catalog, [model], self._make))
        self._signals.set_endpoints(there)
        read = {a: plan for a, plan in plans(self._router.catalog).items() if plan.metrics}
        self._scraping.follow(read, {a: self._replicas[self._numbers[a]] for a in read})

    def decide(self, api: Api, turn: Turn, session: str = "") -> Decision:
        """Choose an endpoint for a request and return the decision with its lease.

        Raises NoEndpoints if there is no engine.
        """
        return self._router.decide(self._resolve(api, turn, session))

    def admit(self, api: Api, turn: Turn, session: str, placed: Released) -> None:
        """Choose an endpoint for a request, with flow control perhaps later.

        `placed` gets the decision with its lease, or the refusal.
        """
        try:
            resolved = self._resolve(api, turn, session)
            if resolved.model.spec.flow_control is None:
                outcome: Decision | Waiter | None = self._router.decide(resolved)
            else:
                arrival = Arrival(turn.objective, turn.tenant, turn.prompt_tokens)
                outcome = self.flow.admit(resolved, arrival, placed)
        except Refusal as refusal:
            placed(refusal)
            return
        if isinstance(outcome, Decision):
            placed(outcome)
        else:
            self._tick()

    def _resolve(self, api: Api, turn: Turn, session: str) -> ResolvedRequest:
        shown = document(api, turn.prompt, self._spec.prefix_hash.prefix_char_length)
        headers = {SESSION_HEADER: session} if session else {}
        resolved = self._router.resolve(turn.adapter or MODEL, shown, headers)
        if resolved.model.strategy.reads_prompts:
            resolved = resolved._replace(prompt=self._prompts.of(turn))
        return resolved

    def _wake(self) -> None:
        """Run the flow control after the present action."""
        if not self._is_woken:
            self._is_woken = True
            self._timeline.at(self._timeline.now, self._run_flow)

    def _run_flow(self) -> None:
        self._is_woken = False
        if self.flow.run():
            self._wake()
        if isinstance(self.flow, FlowControl) and self.flow.due_at not in (inf, self._due_at):
            self._due_at = self.flow.due_at
            self._timeline.at(self._due_at, self._run_flow)

    def _tick(self) -> None:
        """Run the flow control regularly while requests wait."""
        if not self._ticks:
            self._ticks = True
            self._timeline.at(self._timeline.now + TICK_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        self._ticks = False
        self._run_flow()
        if self.flow.waiting:
            self._tick()


def _make(
    routing: Routing, spec: LoadBalancingSpec, rng: Random, signals: Signals, peak: float
) -> Strategy:
    """Return the strategy or rule. `peak` is the prompt tokens that an engine computes a second."""
    if routing.published_rule:
        return published_rules.build(routing.published_rule, spec, rng, signals, peak)
    if routing.weights is not None:
        return PrefixCache(signals, spec.signals, rng, weights=routing.weights)
    return build(spec, rng, signals)
