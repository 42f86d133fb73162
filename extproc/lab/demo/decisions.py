"""Lines of Envoy's access log as the demo shows them, and what their fields mean."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

FIELDS = {
    "strategy": "rule that chose the replica",
    "reason": "why it chose this one",
    "upstream": "the replica",
    "prefix_hash": "hash of the prompt's beginning",
    "inflight": "requests in flight on the replica before this one",
    "hops": "endpoints passed over because they were above the load bound",
    "predicted_hit": "share of the prompt expected in the replica's cache",
}
"""The fields that the demo shows, and their meanings."""


def decisions(log: Iterable[Mapping[str, object]], width: int) -> Iterator[str]:
    """Yield the last line of each kind of decision; none is longer than `width`."""
    last = {(line["strategy"], line["reason"]): line for line in log}
    for line in last.values():
        shown = {name: line[name] for name in FIELDS if line.get(name) is not None}
        yield from _json_lines(shown, width)


def _json_lines(fields: Mapping[str, object], width: int) -> Iterator[str]:
    """Yield a JSON object, broken between its members where it is too long for a line."""
    *members, last = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
    line = "{"
    for member in [*(f"{member}, " for member in members), f"{last}}}"]:
        if len(line) + len(member.rstrip()) > width:
            yield line.rstrip()
            line = " "
        line += member
    yield line
