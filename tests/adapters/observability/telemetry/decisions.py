"""Decisions for the tests of metrics."""

from __future__ import annotations

from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router


def decision(serving: Router, model: str = "llama", prompt: str = "hello") -> Decision:
    return serving.decide(serving.resolve(model, {"prompt": prompt}, {}))
