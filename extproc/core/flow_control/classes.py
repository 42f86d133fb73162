"""Priority classes: configured ones, and those of InferenceObjective objects."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.flow_control.model_flow import ModelFlow
from extproc.core.flow_control.queue import DEFAULT_CLASS, PriorityClass
from extproc.core.schema import ClassSpec, FlowControlSpec

_NO_OBJECTIVES: Mapping[str, int] = {}


class Classes:
    """The classes of all models."""

    def __init__(self) -> None:
        self.objectives: Mapping[str, Mapping[str, int]] = {}
        """Priorities by model and by the name of an InferenceObjective."""

    def of(
        self, flow: ModelFlow, spec: FlowControlSpec, objective: str
    ) -> tuple[PriorityClass, ClassSpec | None]:
        """Return the class of a request, and its configuration if there is one.

        Names that are not configured count as the default class, because clients choose them.
        """
        priority = self._priority(flow, spec, objective)
        if priority is not None:
            return flow.queue.group(objective, priority), spec.by_name.get(objective)
        limits = spec.by_name.get(DEFAULT_CLASS)
        return flow.queue.group(DEFAULT_CLASS, limits.priority if limits else 0), limits

    def find(self, flow: ModelFlow, spec: FlowControlSpec, objective: str) -> PriorityClass:
        """Return the class of a request without adding it to the model's classes."""
        priority = self._priority(flow, spec, objective)
        if priority is None:
            limits = spec.by_name.get(DEFAULT_CLASS)
            objective, priority = DEFAULT_CLASS, limits.priority if limits else 0
        return flow.queue.classes.get(objective) or PriorityClass(objective, priority)

    def revise(self, flow: ModelFlow, spec: FlowControlSpec) -> None:
        """Change the priorities of the classes that a model has so far."""
        for name, group in flow.queue.classes.items():
            group.priority = self._priority(flow, spec, name) or 0
            flow.revised(group)

    def _priority(self, flow: ModelFlow, spec: FlowControlSpec, name: str) -> int | None:
        """Return the priority of a class; None if there is no such class."""
        limits = spec.by_name.get(name)
        if limits is not None:
            return limits.priority
        return self.objectives.get(flow.model, _NO_OBJECTIVES).get(name)
