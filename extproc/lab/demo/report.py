"""The demo's output as lines of text: decisions, comparison, legends, verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import wrap
from typing import NamedTuple

from extproc.lab.demo.chat import Run, Workload
from extproc.lab.demo.decisions import FIELDS, decisions
from extproc.lab.demo.stack import GATEWAYS, REPLICAS, TIME_SCALE

DEFAULT = "PrefixHash"
"""The strategy of a models document that names none."""


@dataclass(frozen=True)
class Result:
    """One strategy's run of the workload."""

    strategy: str
    """The strategy, or the gateways."""
    run: Run
    hit_rate: float
    """Prompt tokens found in prefix caches, as a share of all prompt tokens."""
    spread: float
    """Requests of the busiest replica, divided by the mean of all replicas."""

    def mean_ttft(self) -> float:
        """Return the mean time to first token in seconds; infinite if no request succeeded."""
        return fmean(self.run.ttfts() or [float("inf")])

    def throughput(self) -> float:
        """Return generated tokens per second."""
        return self.run.tokens() / self.run.seconds


class Column(NamedTuple):
    """A column of the comparison, with its line in the legend."""

    title: str
    meaning: str
    cell: Callable[[Result], str]


COLUMNS = (
    Column("strategy", "rule that chose a replica for each request", lambda one: one.strategy),
    Column("TTFT", "mean time to first token at the clients, ms", lambda one: _ttft(one)),
    Column("p50", "median of these times, ms", lambda one: _ttft(one, 50)),
    Column("p99", "99th percentile of these times, ms", lambda one: _ttft(one, 99)),
    Column("hits", "prompt tokens found in prefix caches", lambda one: f"{one.hit_rate:.0%}"),
    Column("spread", "busiest replica's requests / mean", lambda one: f"{one.spread:.2f}"),
    Column("tokens/s", "generated, all clients together", lambda one: f"{one.throughput():,.0f}"),
    Column("seconds", "duration of the run", lambda one: f"{one.run.seconds:.1f}"),
    Column("failed", "requests without a complete response", lambda one: str(one.run.failed())),
)


def introduction(url: str, workload: Workload, width: int) -> list[str]:
    """Return the lines that say what runs, and what is sent to it."""
    stack = (
        f"Envoy {url} -> extproc serve -> {REPLICAS} stand-in vLLM replicas, each "
        f"{TIME_SCALE:g} x as fast as an L4."
    )
    traffic = (
        f"{workload.users} users send {workload.turns} messages each and share "
        f"{workload.system_prompts} system prompts; each strategy gets the same conversations."
    )
    return [*wrap(stack, width), *wrap(traffic, width), ""]


def report(
    results: Sequence[Result], access_log: Iterable[Mapping[str, object]], width: int
) -> list[str]:
    """Return everything that follows the runs; no line is longer than `width`, at least 80."""
    return [
        "",
        *_title("Decisions in Envoy's access log: the last line of each kind", width),
        *decisions(access_log, width),
        "",
        *_legend(FIELDS, width),
        "",
        *_title("The same conversations under each strategy", width),
        *_table(results),
        "",
        *_legend({column.title: column.meaning for column in COLUMNS[1:]}, width),
        "",
        *(line for sentence in verdict(results) for line in wrap(sentence, width)),
    ]


def report_on_gateways(results: Sequence[Result], width: int) -> list[str]:
    """Return the second comparison: one gateway, several alone, and several that share."""
    one, *several = results
    title = f"PrefixCache behind one gateway, and behind {GATEWAYS} that share their state or not"
    lines = ["", *_title(title, width), *_table(results, "gateways"), ""]
    sentences = [_kept(result, one) for result in several if result.run.ttfts()]
    return [*lines, *(line for sentence in sentences for line in wrap(sentence, width))]


def _kept(several: Result, one: Result) -> str:
    return (
        f"{several.strategy.capitalize()}: mean time to first token "
        f"{several.mean_ttft() / one.mean_ttft():.2f} x that behind one gateway."
    )


def verdict(results: Sequence[Result]) -> list[str]:
    """Return sentences that compare the fastest and the default strategy with the first one."""
    baseline, *others = results
    fastest = min(results, key=Result.mean_ttft)
    chosen = [one for one in others if one is fastest or one.strategy == DEFAULT]
    chosen.sort(key=Result.mean_ttft)
    sentences = [_comparison(one, baseline) for one in chosen if one.run.ttfts()]
    if fastest is baseline:
        sentences.insert(0, f"No strategy answered first tokens sooner than {baseline.strategy}.")
    failed = sum(one.run.failed() for one in results)
    if failed:
        sentences.append(f"{failed} requests got no complete response.")
    return [f"Verdict: {sentences[0]}", *sentences[1:]]


def _comparison(one: Result, baseline: Result) -> str:
    own, other = one.mean_ttft(), baseline.mean_ttft()
    if round(max(own, other) / min(own, other), 1) == 1:
        times = "as soon as"
    elif own < other:
        times = f"{other / own:.1f} x sooner than"
    else:
        times = f"{own / other:.1f} x later than"
    return (
        f"{one.strategy} answered first tokens {times} {baseline.strategy} "
        f"({_ttft(one)} ms, not {_ttft(baseline)} ms), found {one.hit_rate:.0%} of the prompt "
        f"tokens in prefix caches (not {baseline.hit_rate:.0%}), and generated "
        f"{one.throughput() / baseline.throughput():.1f} x the tokens per second."
    )


def _title(text: str, width: int) -> list[str]:
    return [text, "-" * min(len(text), width)]


def _table(results: Sequence[Result], first: str = "strategy") -> Iterator[str]:
    rows = [[first, *(column.title for column in COLUMNS[1:])]]
    rows += [[column.cell(result) for column in COLUMNS] for result in results]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for name, *figures in rows:
        aligned = (text.rjust(width) for text, width in zip(figures, widths[1:], strict=True))
        yield "  ".join((name.ljust(widths[0]), *aligned))


def _legend(meanings: Mapping[str, str], width: int) -> Iterator[str]:
    indent = max(map(len, meanings)) + 2
    for name, meaning in meanings.items():
        yield from wrap(
            f"{name:<{indent}}{meaning}", width, subsequent_indent=" " * indent, tabsize=1
        )


def _ttft(result: Result, percent: int | None = None) -> str:
    """Return a percentile of the times to first token, by default their mean, in ms."""
    ordered = result.run.ttfts()
    if not ordered:
        return "-"
    if percent is None:
        return f"{fmean(ordered) * 1e3:,.0f}"
    rank = min(len(ordered) - 1, int(len(ordered) * percent / 100))  # the nearest rank
    return f"{ordered[rank] * 1e3:,.0f}"
