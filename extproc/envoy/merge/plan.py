"""Decisions about a configuration, made before any piece is written."""

from __future__ import annotations

from collections.abc import Mapping as Map
from dataclasses import dataclass, field
from typing import Any

from extproc.envoy.locate import Manager, managers
from extproc.envoy.names import Names
from extproc.envoy.template import Pieces
from extproc.envoy.tree import parse

TUNABLE = frozenset(
    {
        "timeout",
        "idle_timeout",
        "num_retries",
        "host_selection_retry_max_attempts",
        "message_timeout",
        "max_message_timeout",
        "failure_mode_allow",
        "connect_timeout",
        "circuit_breakers",
        "body_format_override",
    }
)
"""Keys whose values the user may tune: a piece that differs only in these is up to date."""


@dataclass(frozen=True)
class Plan:
    """The places of the pieces, with their names and addresses."""

    managers: tuple[int, ...]
    """Numbers of the HTTP connection managers."""

    virtual_host: str
    """Name of the virtual host in each of them."""

    names: Names
    pieces: Pieces
    prefixes: tuple[str, ...]
    """Path prefixes of the LLM paths without a slash at the end; `""` is the root."""

    endpoints: tuple[str, ...]
    """HOST:PORT of the fallback's endpoints. If empty, the configuration keeps its own."""

    sidecar: str
    """HOST:PORT or unix:PATH. If empty, the configuration keeps its address or gets the default."""

    notes: list[str] = field(default_factory=list)
    """Notes for the user, a line each."""

    def note(self, text: str) -> None:
        """Add a note unless there is the same one."""
        if text not in self.notes:
            self.notes.append(text)


def manager_in(text: str, number: int) -> Manager:
    return managers(parse(text))[number]


def covers(existing: Any, wanted: Any) -> bool:
    """Return True if a value has everything in `wanted`. Tunable values may differ."""
    if isinstance(wanted, Map):
        return isinstance(existing, Map) and all(
            key in existing and (key in TUNABLE or covers(existing[key], value))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(existing, list)
            and len(existing) == len(wanted)
            and all(map(covers, existing, wanted))
        )
    return bool(existing == wanted)
