"""Piece 2: Envoy's own errors on LLM paths as JSON."""

from __future__ import annotations

from typing import Any

from extproc.envoy.merge.paths import ANYWHERE, v1_regex
from extproc.envoy.merge.plan import Plan, covers, manager_in
from extproc.envoy.nodes import Mapping, Node, Sequence, walk
from extproc.envoy.splice import add_entries, indented, insert_items, replace_items, replace_value
from extproc.envoy.tree import inline, parse

_CODES = frozenset(
    {
        *("unknown_path", "request_too_large", "request_headers_too_large"),
        *("upstream_timeout", "upstream_unavailable"),
    }
)


def add_local_replies(text: str, number: int, plan: Plan) -> str:
    """Append the mappers to those of a connection manager."""
    manager = manager_in(text, number).node
    block = _for_llm_paths(plan.pieces.local_replies, plan)
    config = manager.get("local_reply_config")
    if not isinstance(config, Mapping):
        whole = f"{_COMMENT}local_reply_config:\n  mappers:\n{indented(block, 2)}"
        return add_entries(text, manager, whole, before="http_filters")
    mappers = config.get("mappers")
    if not isinstance(mappers, Sequence):
        return add_entries(text, config, f"mappers:\n{block}")
    ours = [i for i, one in enumerate(manager.list("local_reply_config.mappers")) if _is_ours(one)]
    if covers([mappers.items[i].data() for i in ours], parse(block).data()):
        return text
    if ANYWHERE in plan.prefixes and _codes(mappers.data()) >= _codes(parse(block).data()):
        return text
    if ours:
        return replace_items(text, mappers, ours, block)
    return insert_items(text, mappers, len(mappers.items), block)


_COMMENT = (
    "# 2. Envoy's own errors on LLM paths as JSON that OpenAI's and Anthropic's clients read.\n"
)


def _codes(mappers: list[Any]) -> set[str]:
    formats = [one.get("body_format_override", {}).get("json_format", {}) for one in mappers]
    errors = [one.get("error") for one in formats]
    return {str(one.get("code")) for one in errors if isinstance(one, dict)}


def _is_ours(mapper: Node) -> bool:
    error: Any = mapper.at("body_format_override.json_format.error")
    return error is not None and error.text("code") in _CODES and "type" in error.data()


def _for_llm_paths(block: str, plan: Plan) -> str:
    """Limit the mappers to LLM paths, because the user's other services may also use `/v1/`.

    Envoy may have removed the prefix from the path before the error.
    """
    anywhere = ".*" if any(plan.prefixes) else ""
    regex = f"{anywhere}{v1_regex(plan.pieces.routes)}([/?].*)?"
    match = next(
        node.get("string_match") for node in walk(parse(block)) if node.get("string_match")
    )
    assert match is not None
    return replace_value(block, match, f"{{safe_regex: {{regex: {inline(regex)}}}}}")
