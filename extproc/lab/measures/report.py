"""The report of one or more runs: a single HTML file that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from extproc import __version__
from extproc.lab.measures.drawing import order
from extproc.lab.measures.names import is_share, label
from extproc.lab.measures.report_charts import (
    VARIABLES,
    hits_over_time,
    spread,
    ttft_distribution,
    ttft_statistics,
)
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import Summary, summarize

_STYLE = Path(__file__).with_suffix(".css")

_FIGURES = (
    *("completed", "failed", "duration", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms"),
    *("mean_itl_ms", "total_token_throughput", "hit_rate", "load_spread"),
)


@dataclass(frozen=True)
class Report:
    """The content of a report."""

    title: str
    source: str
    """The origin of the figures: the command, and what it ran or simulated."""
    runs: Sequence[Run]
    decisions: Sequence[Mapping[str, object]] = ()
    """Lines of the decision log, with the same keys; none if the runs have no log."""
    about_decisions: str = ""
    """The lines that the log has, and their origin."""

    def write(self, path: Path) -> None:
        """Write the file. Raises OSError."""
        path.write_text(self.html(), encoding="utf-8")

    def html(self) -> str:
        """Return the whole page."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        runs = sorted(self.runs, key=lambda run: order(run.strategy))
        yield "<!doctype html>"
        yield '<html lang="en"><head><meta charset="utf-8">'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
        yield f"<title>{escape(self.title)}</title>"
        yield f"<style>\n{_style()}</style></head><body><main>"
        yield f"<h1>{escape(self.title)}</h1>"
        yield f"<p>Source: {escape(self.source)}</p>"
        yield from _charts(runs)
        yield "<h2>Figures</h2>"
        yield from _figures([summarize(run) for run in runs])
        if self.decisions:
            yield f"<h2>Decision log</h2><p>{escape(self.about_decisions)}</p>"
            yield from _log(self.decisions)
        yield f"</main><footer>extproc {escape(__version__)}</footer></body></html>"


def _charts(runs: Sequence[Run]) -> Iterator[str]:
    drawn = {
        "Time to first token": (
            ttft_distribution(runs),
            "A line further left is faster. The clients measured the time from sending.",
        ),
        "Mean, median and p99": (ttft_statistics(runs), "Lower is better."),
        "Hits over time": (
            hits_over_time(runs),
            "Servers report the tokens of a prompt that were in their cache. Higher is better.",
        ),
        "Spread over endpoints": (
            spread(runs),
            "A flat line at 1 is an even spread. In a steep line, few endpoints get most requests.",
        ),
    }
    for heading, (element, caption) in drawn.items():
        if element:
            yield f"<h2>{escape(heading)}</h2>"
            about = f'role="img" aria-label="{escape(heading)}" tabindex="0"'
            yield f'<figure><div class="scrolls" {about}>{element}</div>'
            yield f"<figcaption>{escape(caption)}</figcaption></figure>"


def _figures(summaries: Sequence[Summary]) -> Iterator[str]:
    names = ("strategy", *(label(name) for name in _FIGURES))
    rows = (
        (one.strategy, *(_figure(name, getattr(one, name)) for name in _FIGURES))
        for one in summaries
    )
    yield from _table("Figures", names, rows)


def _figure(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    if is_share(name):
        return f"{value:.0%}"
    if isinstance(value, int) or value >= 10:
        return f"{value:,.0f}"
    return f"{value:.2f}"


def _log(lines: Sequence[Mapping[str, object]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for line in lines for name in line))
    shown = ([str(line.get(name, "")) for name in names] for line in lines)
    yield from _table("Decision log", names, shown, kind=' class="texts"')


def _table(
    title: str, names: Sequence[str], rows: Iterator[Sequence[str]], kind: str = ""
) -> Iterator[str]:
    # The keyboard scrolls only what can have the focus.
    yield f'<div class="scrolls" role="region" aria-label="{title}" tabindex="0"><table{kind}>'
    yield f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</table></div>"


def _style() -> str:
    light, dark = (
        "\n".join(f"  {name}: {colors[theme]};" for name, colors in VARIABLES.items())
        for theme in (0, 1)
    )
    return _STYLE.read_text().replace("LIGHT", light).replace("DARK", dark)
