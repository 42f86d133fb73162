"""Replies to Envoy, built from a decision or changed after it."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.conversation.events import Immediate, Kind, Proceed
from extproc.core.conversation.provisional import Provisional
from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision

CONTENT_LENGTH = "content-length"

CONTINUE = (Proceed(Kind.REQUEST_BODY),)
LEAVE_OUT = (Proceed(Kind.REQUEST_BODY, body=b""),)


def decided(
    kind: Kind, decision: Decision, set_headers: tuple[tuple[str, str], ...], *, lists: bool
) -> Proceed:
    """Return the reply with a decision; `lists`: the destination may name two addresses."""
    return Proceed(
        kind,
        decision.address,
        kind is Kind.REQUEST_HEADERS,
        decision,
        decision.destination if lists else decision.address,
        decision.requested,
        decision.model,
        set_headers,
    )


def provisional(kind: Kind, early: Provisional) -> Proceed:
    """Return the reply to headers that Envoy wants before it shows the body."""
    return Proceed(
        kind,
        early.target,
        reroute=True,
        destination=early.destination,
        requested=early.requested,
        model=early.model,
    )


def refused(refusal: Refusal, id_headers: Mapping[str, str], body: bytes) -> Immediate:
    """Return the error that the client gets."""
    return Immediate(refusal.status, {**refusal.headers, **id_headers}, body, refusal.code)


def models_listed(id_headers: Mapping[str, str], body: bytes) -> Immediate:
    """Return the list of models, or one of them."""
    headers = {"content-type": "application/json", **id_headers}
    return Immediate(200, headers, body, "models_listed")


def with_body(reply: Proceed, body: bytes, *, complete: bool) -> Proceed:
    """Return the reply with another body than Envoy showed.

    In BUFFERED mode Envoy answers 500 if `content-length` does not match the new body. In
    BUFFERED_PARTIAL mode it removes the header and ignores a new value.
    """
    if not complete:
        return reply._replace(body=body, remove_headers=(CONTENT_LENGTH,))
    length = (CONTENT_LENGTH, str(len(body)))
    return reply._replace(body=body, set_headers=(*reply.set_headers, length))
