"""The verdict on a request: a decision, a refusal, a list of models, or undecided passing."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision


@dataclass(frozen=True)
class Listed:
    """The verdict on a request for the list of models, or for one of them."""


@dataclass(frozen=True)
class Passed:
    """The verdict on a request to an unknown path that passes undecided."""


Verdict = Decision | Refusal | Listed | Passed
