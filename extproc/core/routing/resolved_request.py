"""A resolved request: the model that a request means, and what decides its endpoint."""

from __future__ import annotations

from typing import NamedTuple

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.fleet.subset import Subset
from extproc.core.request.blocks import Prompt
from extproc.core.routing.catalog import Model


class ResolvedRequest(NamedTuple):
    """A request as a strategy sees it: model, adapter, prefix and key on the ring."""

    model: Model
    adapter: str
    prefix: str
    key: int | None
    snapshot: Snapshot
    """The model's endpoints that the request may go to."""
    rename: str | None = None
    """The servers' name for the model; None if the request uses it already."""
    prompt: Prompt | None = None
    """The prompt's blocks; None if the strategy does not read prompts."""
    settled: bool = True
    """True if the key of a split was read whole, also from a cut body."""
    session: str = ""
    """The source of the session id that serves as prefix; empty if the prefix is text."""
    requested: str = ""
    """The model's name in the request."""
    answer_as: str | None = None
    """The model's name that the response must carry; None if it keeps the servers' name."""
    holder: str | None = None
    """The address of the endpoint that stores the response which the request refers to."""
    stores: bool = False
    """True if the request creates a response whose id the sidecar assigns."""
    subset: Subset | None = None
    """The only endpoints that the gateway allows; None if it allows all."""

    @property
    def changes_body(self) -> bool:
        """True if the servers may have to get another body than the client sent."""
        return self.rename is not None or self.stores
