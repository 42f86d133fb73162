"""The rows that miss a target, each with its cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extproc.lab.tables.book import Book
from extproc.lab.tables.markdown import table
from extproc.lab.tables.prefix_verdict import TARGETS, judged

CAUSES: Mapping[str, str] = {
    "kubeai-chat-800": "chance: the p99 of eight other seeds is 1.00 x the same rule's",
    "kubeai-chat-3200": "the queues. Of the requests that wait for a place in a full batch, at "
    "most 1/32 of the batch counts. If all counted, the p99 would be 1.06 x AIBrix's, and the mean "
    "1 % longer. In bursts of chats on batches of 32, the mean would be 12 % longer",
    "kubeai-chat-8000": "chance: with an earlier version, the throughput of six other seeds was "
    "1.00 x Sticky's",
    "kubeai-chat-1600 on 6": "the queues in part: with an earlier version, the same change made "
    "the p99 2 % shorter",
    "kubeai-threads-300": "chance in part: with six other seeds, the mean is 1.03 x Sticky's, and "
    "the p99 1.02 x LMetric's",
    "kubeai-threads-600": "p99: chance in part, it is 1.03 x LMetric's with six other seeds. "
    "Throughput: the rules with the shortest times, Sticky and LMetric, have the same. AIBrix "
    "computes fewer tokens, and its mean TTFT is 2.2 x as long",
    "kubeai-threads-1200": "throughput: the rules with the shortest times, Sticky and LMetric, "
    "have the same. PrefixHash computes fewer tokens, and its mean TTFT is 2.1 x as long",
    "mooncake at 4": "an overload, in which times are 24 s on average. LMetric's p99 is 1.4 x as "
    "long",
    "codegen at 2": "throughput: responses take 3.4 s on average, and 3.1 s with AIBrix, which "
    "spreads requests more evenly. Its mean TTFT is 1.9 x as long",
    "sub-agents": "throughput: responses take 5.1 s on average, and 4.1 s with PrefixHash, which "
    "spreads requests more evenly. Its mean TTFT is 2.7 x as long",
    "agents-20 without chunks": "throughput: responses take 5.4 s on average, and 4.9 s with "
    "PrefixHash, which spreads requests more evenly. Its mean TTFT is 3.7 x as long",
    "hot-prefix": "the first 8 s, when the caches are empty. After that, the p99 is 0.60 s with "
    "both (seed 0)",
    "200 endpoints": "the limit of 200 scrapes a second for all endpoints. Without it, the mean "
    "TTFT of four seeds is 4.5 % shorter",
    "hot-fleet-64-chat": "the first computations of the prefix take 1.7 s each. 46 of 4,147 "
    "requests compute it or wait for it, and 1 % are 41 (seed 0)",
    "hot-fleet-200": "chance: the last request of the run ends 0.4 s after all others. Until 99 % "
    "of the responses have ended, the throughput is 1.01 x LMetric's",
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
