"""Positions of the new routes among the user's.

If routes of the user forward LLM requests, new routes come directly before each of them. They serve
the same requests with the same settings, and no others. So no request loses the authentication that
it needs today, and no setting of one route reaches the requests of another.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from extproc.envoy.merge.mounted import limit_in
from extproc.envoy.merge.paths import (
    is_catch_all,
    is_conditional,
    limit_of,
    never_takes_llm_paths,
    takes_llm_paths,
)
from extproc.envoy.merge.plan import Plan
from extproc.envoy.merge.settings import (
    Settings,
    differing,
    filters_of,
    label,
    settings_of,
    settings_of_block,
)
from extproc.envoy.nodes import Node
from extproc.envoy.problems import ConfigurationError


@dataclass(frozen=True)
class Section:
    """New routes to insert."""

    before: int
    """Position of the route that follows them, among all routes."""

    limit: str
    """Pattern of `:path` for the requests that they serve; "" for all LLM paths."""

    settings: Settings
    stale: tuple[int, ...] = field(default=())
    """Positions of existing routes that they replace, because these come too late."""


def blocks_of(items: Seq[Node], ours: Seq[int]) -> dict[str, list[int]]:
    """Return the positions of existing new routes by their limit."""
    found: dict[str, list[int]] = {}
    for i in ours:
        found.setdefault(limit_in(items[i]), []).append(i)
    return found


def reached(items: Seq[Node], ours: Seq[int], plan: Plan) -> list[int]:
    """Return the positions of the user's routes that LLM requests reach now.

    None comes after a route for every path, or after existing routes for all LLM paths.
    """
    end = blocks_of(items, ours).get("", [len(items)])[0]
    found = [i for i in range(end) if i not in ours]
    catching = [i for i in found if is_catch_all(items[i])]
    return [i for i in found if not catching or i <= catching[0]]


def forwarding(items: Seq[Node], ours: Seq[int], plan: Plan) -> list[int]:
    """Return the positions of the user's routes that forward LLM requests now.

    Routes with further conditions do not count: they stay in front of the new routes.
    """
    return [
        i
        for i in reached(items, ours, plan)
        if not is_conditional(items[i]) and _forwards(items[i], plan)
    ]


def sections(items: Seq[Node], ours: Seq[int], plan: Plan) -> list[Section]:
    """Return the new routes that are missing, in their order.

    Raises ConfigurationError if no new routes can have the same requests or settings as a route of
    the user.
    """
    sources = forwarding(items, ours, plan)
    if sources and "" not in blocks_of(items, ours):
        _refuse_unserved_prefix([items[i] for i in sources], plan)
    if not ours:
        return _collapsed(items, sources, plan) if sources else [_for_all_paths(items, plan)]
    blocks = blocks_of(items, ours)
    existing = {i: blocks.get(_limit(items[i]), []) for i in sources}
    late = [i for i, block in existing.items() if not block or block[-1] > i]
    return [_section(items, i, plan, existing[i]) for i in late]


def _forwards(route: Node, plan: Plan) -> bool:
    return route.get("route") is not None and takes_llm_paths(route, plan.prefixes)


def _refuse_unserved_prefix(sources: Seq[Node], plan: Plan) -> None:
    for prefix in plan.prefixes:
        if not any(takes_llm_paths(one, (prefix,)) for one in sources):
            raise ConfigurationError(
                f"--prefix {prefix or '/'}: none of your routes forwards LLM requests below it, "
                f"but {label(sources[0])} forwards others: add a route for `prefix: {prefix}/` "
                "that forwards them, with the settings that they need"
            )


def _for_all_paths(items: Seq[Node], plan: Plan) -> Section:
    """Return new routes for all LLM paths, before a route that responds to all other requests."""
    conditional = next((one for one in items if _forwards(one, plan)), None)
    if conditional is not None:
        raise ConfigurationError(
            f"{label(conditional)} forwards LLM requests only if they meet further conditions, and "
            "no route forwards the others: new routes would serve requests that are not served "
            "now. Add a route without conditions, or copy the pieces by hand (`extproc "
            "envoy-config` prints them)"
        )
    before = next((i for i, one in enumerate(items) if is_catch_all(one)), len(items))
    for last in items[before : before + 1]:
        if filters := filters_of(last, plan.names):
            raise ConfigurationError(
                f"{label(last)} responds to LLM requests now, with settings for "
                f"{', '.join(filters)}: add a route before it that forwards them (such as `prefix: "
                "/v1/`), with the settings that they need"
            )
    return Section(before, "", {})


def _collapsed(items: Seq[Node], sources: Seq[int], plan: Plan) -> list[Section]:
    """Return the new routes before each source.

    If the last source takes every path, one set of new routes serves it and the sources before it
    that have equal settings, unless routes between them handle LLM requests, too.
    """
    last = sources[-1]
    first = len(sources) - 1
    if is_catch_all(items[last]):
        settings = settings_of(items[last], plan.names)
        while first and _equal(items, sources[first - 1], sources[first], settings, plan):
            first -= 1
        rest = [Section(sources[first], "", settings)]
        sources = sources[:first]
    else:
        rest = []
    return [*(_section(items, i, plan) for i in sources), *rest]


def _equal(items: Seq[Node], i: int, following: int, settings: Settings, plan: Plan) -> bool:
    between = items[i + 1 : following]
    return settings_of(items[i], plan.names) == settings and all(
        never_takes_llm_paths(one, plan.prefixes) for one in between
    )


def _section(items: Seq[Node], i: int, plan: Plan, stale: Seq[int] = ()) -> Section:
    limit = _limit(items[i])
    if not limit and not is_catch_all(items[i]):
        raise ConfigurationError(
            f"{label(items[i])} forwards LLM requests, and its path condition is too complex for "
            "new routes that serve exactly the same requests: write it as one route for each "
            "`prefix` or `path`"
        )
    settings = settings_of(items[i], plan.names)
    if stale:
        existing = settings_of_block([items[one] for one in stale], plan.names)
        _refuse_different(items[i], settings, items[stale[0]], existing)
        settings = {**settings, **existing}
    return Section(i, limit, settings, tuple(stale))


def _refuse_different(route: Node, settings: Settings, ours: Node, existing: Settings) -> None:
    if keys := differing(settings, existing):
        raise ConfigurationError(
            f"{label(route)} takes the requests of the routes for LLMs after it ({label(ours)}), "
            f"and has different settings ({', '.join(keys)}): move it after them, or give both the "
            "same settings"
        )


def _limit(route: Node) -> str:
    return "" if is_catch_all(route) else limit_of(route)
