"""Small fleets, engines and workloads with figures that can be calculated by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from extproc.core.schema import LoadBalancingSpec
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, Profile
from extproc.lab.simulation.sidecars import Routing
from extproc.lab.simulation.simulation import Scenario
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload, conversation

BLOCK = 16


def engine(**other: Any) -> Profile:
    """Return an engine with a second for each step and an eighth more for each admitted request.

    Such seconds add up exactly, except for prompts, which take almost nothing.
    """
    plain = Profile(
        name="by hand",
        step_base_seconds=1.0,
        seconds_per_context_token=0.0,
        admission_seconds=0.125,
        prefill_tokens_per_second=2.0**70,
        kv_tokens=100_000,
    )
    return replace(plain, **other)


def fast(**other: Any) -> Profile:
    """Return the engine of the published tables, with changes."""
    return replace(L4_LLAMA_3_1_8B_FP8, **other)


def turn(
    name: str,
    prompt: int = 20,
    output: int = 2,
    adapter: str = "",
    think: float = 0.0,
    opening: Sequence[Segment] = (),
) -> Turn:
    """Return a request with its own prompt, after an optional shared part."""
    own = Segment(name, prompt)
    answer = Segment(f"{name}/answer", output, "assistant")
    return Turn((*opening, own), answer, adapter, think)


def session(*turns: Turn, start: float = 0.0) -> Session:
    return Session(turns, start)


def talk(name: str, messages: Sequence[int], answers: Sequence[int]) -> Session:
    """Return a conversation: each turn begins with all earlier messages."""
    return Session(conversation(name, (), messages, answers))


def workload(*sessions: Session, **other: Any) -> Workload:
    return Workload(name="by hand", sessions=sessions, **other)


def balancing(strategy: str, **other: Any) -> LoadBalancingSpec:
    """Return a loadBalancing block of the models document."""
    return LoadBalancingSpec.model_validate({"strategy": strategy, **other})


def scenario(
    asked: Workload, profile: Profile | None = None, strategy: str = "LeastLoad", **other: Any
) -> Scenario:
    """Return a scenario, by default with one engine and one sidecar."""
    routing = other.pop("routing", Routing(balancing(strategy), asked.adapters))
    values = {"replicas": 1, **other}
    return Scenario(asked, engine() if profile is None else profile, routing, **values)
