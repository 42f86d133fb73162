"""The provisional target of a request whose headers need a reply before the body."""

from __future__ import annotations

from typing import NamedTuple

PENDING = "pending"
"""The provisional target while the model is unknown. It is no address: if the sidecar dies before
its reply to the body, Envoy answers 503 instead of guessing."""


class Provisional(NamedTuple):
    """The target and model in a reply to headers, before the body."""

    target: str
    """A ready endpoint if the model is certain, else PENDING."""
    requested: str = ""
    """The model's name in the request, as far as it is known."""
    model: str = ""
    """The configured model; empty while unknown."""

    @property
    def destination(self) -> str:
        """The address in the endpoint picker protocol's header; empty while there is none."""
        return "" if self.target == PENDING else self.target
