"""Chooses the listeners and the virtual host for LLM requests."""

from __future__ import annotations

import json
from collections.abc import Sequence

from extproc.envoy.locate import Manager, managers
from extproc.envoy.merge.routes import is_our_route
from extproc.envoy.names import Names
from extproc.envoy.nodes import Node
from extproc.envoy.problems import ConfigurationError

_ELSEWHERE = {"rds": "RDS", "scoped_routes": "scoped routes (SRDS)"}


def targets(
    root: Node, names: Names, listeners: Sequence[str] = (), virtual_host: str = ""
) -> tuple[list[Manager], str]:
    """Return the connection managers that get the pieces, and the virtual host in each.

    If the user names none, there must be exactly one virtual host that forwards requests. All
    listeners that share it get the pieces, for example one for TCP and one for QUIC. Raises
    ConfigurationError, which lists the candidates.
    """
    found = _named_listeners(managers(root), listeners)
    _refuse_routes_from_elsewhere(found)
    pairs = [(one, host) for one in found for host in one.virtual_hosts()]
    if virtual_host:
        pairs = [(one, host) for one, host in pairs if host.text("name") == virtual_host]
    else:
        pairs = _with_pieces(pairs, names) or _forwarding(pairs) or pairs
    if not pairs:
        what = f"no virtual host {virtual_host!r}" if virtual_host else "no virtual host"
        raise ConfigurationError(f"{what} in {_listed(found)}: name one with --virtual-host")
    # Listeners that the user has named may have different routes.
    kinds = {host.text("name") if listeners else _identity(host, names) for _, host in pairs}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"more than one virtual host is possible: {_candidates(pairs)}; choose one with "
            "--listener and --virtual-host"
        )
    return [one for one, _ in pairs], pairs[0][1].text("name")


def _named_listeners(found: list[Manager], names: Sequence[str]) -> list[Manager]:
    if not found:
        raise ConfigurationError(
            "no static listener with an HTTP connection manager: change listeners from LDS where "
            "they are created. `extproc envoy-config` prints the pieces"
        )
    known = sorted({one.listener for one in found})
    for name in names:
        if name not in known:
            raise ConfigurationError(f"no listener {name!r}: there are {', '.join(known)}")
    return [one for one in found if not names or one.listener in names]


def _refuse_routes_from_elsewhere(found: list[Manager]) -> None:
    for one in found:
        if source := one.other_source():
            raise ConfigurationError(
                f"listener {one.listener} gets its routes from {_ELSEWHERE[source]}: add pieces 4 "
                "and 5 where those routes are created, and the others by hand (`extproc "
                "envoy-config` prints all of them), or name another listener with --listener"
            )


def _with_pieces(pairs: list[tuple[Manager, Node]], names: Names) -> list[tuple[Manager, Node]]:
    """Keep virtual hosts that have the pieces of this version or an older one."""
    return [
        (one, host)
        for one, host in pairs
        if any(is_our_route(route, names) for route in host.list("routes"))
    ]


def _forwarding(pairs: list[tuple[Manager, Node]]) -> list[tuple[Manager, Node]]:
    """Omit virtual hosts that only redirect, for example to https, or respond directly."""
    return [
        (one, host)
        for one, host in pairs
        if host.get("matcher") is not None
        or any(route.get("route") is not None for route in host.list("routes"))
    ]


def _identity(host: Node, names: Names) -> str:
    routes = [one.data() for one in host.list("routes") if not is_our_route(one, names)]
    domains = host.get("domains")
    return json.dumps([host.text("name"), domains.data() if domains else [], routes], default=str)


def _listed(found: list[Manager]) -> str:
    return ", ".join(f"listener {name}" for name in dict.fromkeys(one.listener for one in found))


def _candidates(pairs: list[tuple[Manager, Node]]) -> str:
    shown = [f"{one.listener}/{host.text('name')}" for one, host in pairs]
    return ", ".join(dict.fromkeys(shown))
