"""Piece 6: the decision in the lines of JSON access logs."""

from __future__ import annotations

from extproc.envoy.merge.plan import Plan, manager_in
from extproc.envoy.nodes import Mapping, Node, Scalar
from extproc.envoy.splice import add_entries
from extproc.envoy.tree import parse

_WHERE = ("typed_config.log_format.json_format", "typed_config.json_format")


def add_log_fields(text: str, number: int, plan: Plan) -> str:
    """Add the fields that a JSON format lacks. Fields of the user are never overwritten."""
    manager = manager_in(text, number)
    logs = manager.node.list("access_log")
    formats = [found for log in logs if (found := _json_format(log)) is not None]
    if not formats:
        plan.note(
            f"listener {manager.listener}: it has no access log in JSON, so none was changed. To "
            "see decisions, add %DYNAMIC_METADATA(extproc)% to its format"
        )
    # Edit from the last to the first, because an edit moves the text after it.
    for one in sorted(set(formats), key=lambda found: -found.start):
        text = _add_missing(text, one, plan)
    return text


def _json_format(log: Node) -> Mapping | None:
    found = next((node for where in _WHERE if (node := log.at(where)) is not None), None)
    return found if isinstance(found, Mapping) and found.entries else None


def _add_missing(text: str, existing: Mapping, plan: Plan) -> str:
    values = {
        key: value.value if isinstance(value, Scalar) else ""
        for key, value in existing.values().items()
    }
    if any("DYNAMIC_METADATA(extproc)" in value for value in values.values()):
        return text
    wanted: dict[str, str] = parse(plan.pieces.log_fields).data()
    missing = {k: v for k, v in wanted.items() if k not in values and v not in values.values()}
    for key in wanted:
        if key in values and "(extproc:" not in values[key]:
            plan.note(
                f"access log field {key!r} (line {existing.line}) stays as it is, because it is "
                "yours"
            )
    if not missing:
        return text
    return add_entries(text, existing, "".join(f'{k}: "{v}"\n' for k, v in missing.items()))
