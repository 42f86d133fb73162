"""The reference, docs/reference.md, written from the code.

Its texts are docstrings of classes, attributes and enum members, and the help texts of commands.
Writing the page fails if a required docstring is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum

from extproc.adapters.configuration.docstrings import attribute_docstrings
from extproc.adapters.endpoints.screening import RejectionReason
from extproc.core.request.refusals import (
    ModelChanged,
    NoEndpoints,
    QueueFull,
    QueueTimeout,
    Refusal,
)
from extproc.core.strategies import Reason
from extproc.lab.pages.commands import commands
from extproc.lab.pages.docstrings import summary
from extproc.lab.pages.document import models_document
from extproc.lab.pages.lines import codes, heading, paragraph, table
from extproc.lab.pages.metrics import metrics_section
from extproc.lab.pages.paths import paths
from extproc.lab.pages.strategies import strategies


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "All keys, flags, metrics and errors. `make reference` writes this page from the code."
    yield from models_document()
    yield from strategies()
    yield from commands()
    yield from metrics_section()
    yield from paths()
    yield from _refusals()
    yield from _reasons()
    yield from _refused_addresses()
    yield ""


def _refusals() -> Iterator[str]:
    yield from heading("Refusals")
    yield from paragraph(
        "The sidecar answers a refused request in OpenAI's error shape. On Anthropic's paths "
        "(`/v1/messages`, `/v1/messages/count_tokens`) it uses Anthropic's shape. "
        f"`{NoEndpoints.code}` comes with `retry-after: {NoEndpoints.RETRY_AFTER_SECONDS}`, "
        f"`{ModelChanged.code}` with `retry-after: {ModelChanged.RETRY_AFTER_SECONDS}`, and "
        f"`{QueueFull.code}` and `{QueueTimeout.code}` with an estimate. "
        "Envoy's `x-request-id` is in the header of that name, in the field `request_id` of the "
        "body, and in the log."
    )
    rows = [(str(one.status), f"`{one.code}`", f"`{one.type}`", summary(one)) for one in refusals()]
    yield from table(("status", "code", "type", "when"), rows)


def refusals() -> list[type[Refusal]]:
    """Return every kind of refusal."""
    return sorted(Refusal.__subclasses__(), key=lambda one: (one.status, one.code))


def _reasons() -> Iterator[str]:
    yield from heading("Reasons")
    yield "The field `reason` in the access log and in `extproc explain` explains the choice."
    yield ""
    yield from _members(Reason)


def _refused_addresses() -> Iterator[str]:
    yield from heading("Addresses never routed to")
    yield from paragraph(
        "The label `reason` of `extproc_endpoints_refused_total`: why a discovered address does "
        "not become an endpoint."
    )
    yield ""
    yield from _members(RejectionReason)


def _members(enum: type[Enum]) -> Iterator[str]:
    """List the members with a docstring, then the names of the others in one line."""
    meanings = attribute_docstrings(enum)
    for name, member in enum.__members__.items():
        if name in meanings:
            yield f"- `{member.value}`: {meanings[name]}"
    rest = [one.value for name, one in enum.__members__.items() if name not in meanings]
    if rest:
        yield f"- {codes(rest)}: as the name says."


if __name__ == "__main__":
    sys.stdout.write(page())
