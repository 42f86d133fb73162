"""The rows that miss a target, each with its cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extproc.lab.tables.book import Book
from extproc.lab.tables.markdown import table
from extproc.lab.tables.prefix_verdict import TARGETS, judged

CAUSES: Mapping[str, str] = {
    "kubeai-threads-600": "PrefixCache learns of first tokens from metrics. With the moment of "
    "each, the mean TTFT is 1.00 x instead of 1.08 x, and the throughput 0.980 x instead of "
    "0.977 x (seed 0)",
    "kubeai-threads-1200": "a part: with the moment of each first token, the mean TTFT is 1.16 x "
    "instead of 1.18 x, and the throughput 0.969 x instead of 0.956 x (seed 0)",
    "mooncake at 4": "overload: LMetric serves short prompts first (the shortest quarter after "
    "15 s and the longest after 33 s; PrefixCache after 25 s and 27 s; seed 0)",
    "hot-prefix": "the first 8 s, when the caches are empty. After that, the p99 is 0.62 s, and "
    "LMetric's is 0.60 s (seed 0)",
    "hot-fleet-64-chat": "the first computations of the prefix take 1.7 s each. 46 of 4,147 "
    "requests compute it or wait for it, and 1 % are 41 (seed 0)",
    "hot-fleet-200": "chance: the last request of the run ends 0.8 s after all others. Without it, "
    "the throughput is 1.00 x",
    "hot-fleet-64, from 24 engines": "each copy costs a request 1.7 s, and 1 % of the requests "
    "make one; LMetric never uses the engines that join",
}
"""Causes of misses by scene. Add one only after an experiment has shown it."""

_COUNTED = [place for place, required in enumerate(TARGETS.values()) if required == "all"]
"""Targets that all rows have to meet."""

_NAMES = [target.partition(" within")[0].partition(" at least")[0] for target in TARGETS]
"""The figure that each target limits."""


def misses(book: Book, scenes: Iterable[str]) -> str:
    """Show the rows that miss a target that all rows have to meet."""
    rows = []
    for scene, row in judged(book, scenes).items():
        missed = [f"{_NAMES[n]}: {row[n].figure}" for n in _COUNTED if row[n].holds is False]
        if missed:
            rows.append([scene, "; ".join(missed), CAUSES.get(scene, "not known")])
    if not rows:
        return "All rows meet these targets."
    return table(["workload", "missed", "cause"], rows, left=3)
