"""Writes the pieces of the recommended configuration into a user's configuration.

Each step takes the text and returns it with one piece added or updated. A piece that is up to date
stays as it is, so the tool can run any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from extproc.envoy.locate import Manager
from extproc.envoy.merge.access_log import add_log_fields
from extproc.envoy.merge.clusters import add_clusters
from extproc.envoy.merge.early_removal import add_early_removal
from extproc.envoy.merge.filters import add_filters
from extproc.envoy.merge.local_replies import add_local_replies
from extproc.envoy.merge.mounted import mounts_of
from extproc.envoy.merge.plan import Plan
from extproc.envoy.merge.routes import add_routes, is_our_route, virtual_host
from extproc.envoy.merge.targets import targets
from extproc.envoy.names import Names, names_in
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.template import pieces
from extproc.envoy.tree import YamlError, parse

__all__ = ["ConfigurationError", "Merged", "merge"]

_BYTE_ORDER_MARK = "\ufeff"

_STEPS = (add_early_removal, add_local_replies, add_filters, add_routes, add_log_fields)


@dataclass(frozen=True)
class Merged:
    """A configuration with the pieces."""

    text: str
    notes: tuple[str, ...]
    """Notes for the user about work to do by hand, a line each. They name lines of the original."""


def merge(
    text: str,
    *,
    endpoints: Sequence[str] = (),
    sidecar: str = "",
    prefixes: Sequence[str] = (),
    listeners: Sequence[str] = (),
    virtual_host: str = "",
) -> Merged:
    """Return the configuration with all pieces. Raises ConfigurationError, YamlError."""
    # The steps know neither Windows line ends nor a byte order mark, so restore them afterwards.
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    windows = "\r\n" in text
    text = text.removeprefix(mark).replace("\r\n", "\n")
    root = parse(text)
    names = names_in(root)
    chosen, host = targets(root, names, listeners, virtual_host)
    plan = Plan(
        managers=tuple(one.number for one in chosen),
        virtual_host=host,
        names=names,
        pieces=pieces(names),
        prefixes=_longest_first(map(_mount, prefixes)) or _mounts(chosen[0], host, names),
        endpoints=tuple(endpoints),
        sidecar=sidecar,
    )
    try:
        _check(text, plan)
        text = _with_pieces(text, plan)
    except YamlError as error:
        raise ConfigurationError(
            f"the pieces do not fit into this file's layout ({error}): write its lists in block "
            "style, with a `-` for each item"
        ) from None
    return Merged(mark + (text.replace("\n", "\r\n") if windows else text), tuple(plan.notes))


def _check(text: str, plan: Plan) -> None:
    """Run each step on the user's own text, so that errors and notes have its line numbers."""
    for number in plan.managers:
        for step in _STEPS:
            step(text, number, plan)
    add_clusters(text, plan)


def _with_pieces(text: str, plan: Plan) -> str:
    """Run all steps, each on the result of the one before. The notes are known already."""
    plan = replace(plan, notes=[])
    for number in plan.managers:
        for step in _STEPS:
            text = step(text, number, plan)
    text = add_clusters(text, plan)
    parse(text)
    return text


def _mounts(manager: Manager, host: str, names: Names) -> tuple[str, ...]:
    routes = virtual_host(manager, host).list("routes")
    return _longest_first(mounts_of(one for one in routes if is_our_route(one, names)))


def _longest_first(prefixes: Iterable[str]) -> tuple[str, ...]:
    """Return each prefix once, so that `/a/b` comes before `/a` and the order never changes."""
    return tuple(sorted(set(prefixes), key=lambda one: (-len(one), one)))


def _mount(prefix: str) -> str:
    """Return a prefix without a slash at its end, and without the `/v1` that clients' URLs have."""
    return prefix.rstrip("/").removesuffix("/v1").rstrip("/")
