"""The phases of a conversation."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    """The step of a conversation between two events; `state_machine` has the transitions."""

    __hash__ = object.__hash__  # members are looked up with each event; Enum's own is slow

    OPENING = auto()
    """The request headers have not arrived."""
    READING = auto()
    """The headers are answered; the head of the body is to come."""
    WAITING = auto()
    """The reply to the headers waits until the body's head is sufficient; Envoy keeps the body."""
    HOLDING = auto()
    """The same, but the sidecar keeps the body and has to give it back."""
    QUEUED = auto()
    """The request waits until an endpoint has room. Further events wait with it."""
    PASSING = auto()
    """The decision is made, and the sidecar gives each part of the body back as it arrives."""
    PASSED = auto()
    """The same, and the whole request was given back."""
    ROUTED = auto()
    """The decision is made, or the request passes undecided. Nothing more of it is needed."""
    CLOSED = auto()
    """The sidecar answered the client itself, or the stream has ended."""
