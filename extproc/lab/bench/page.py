"""docs/performance.md, from the figures of a run; by itself it writes the page anew from those of
the last one, after a change of the text.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

from extproc.lab.bench import grids, targets
from extproc.lab.bench.results import Results, read
from extproc.lab.bench.targets import FAST
from extproc.lab.bench.ways import ALONE, SGLANG
from extproc.lab.tables.markdown import table

PAGE = "performance.md"
FIGURES = "performance.json"
"""Beside the page: the run that it shows."""

_COMPILED = ("decision_compiled", "prefix_cache_compiled")
_TEXT = Path(__file__).with_name("page.md")


def write(docs: Path) -> None:
    """The page, from the figures beside it."""
    (docs / PAGE).write_text(text(read(docs / FIGURES)))


def text(results: Results) -> str:
    """The page."""
    parts = {
        "machine": table(["", ""], list(results.machine.items()), left=2),
        "ways": table(["way", "what it is"], list(results.ways.items()), left=2),
        "targets": targets.grid(results).markdown(),
        "filter": _what_the_filter_takes(results),
        "caption": grids.title(results).capitalize(),
        "through": grids.through(results).markdown(),
        "held": grids.held(results).markdown(),
    }
    parts |= dict.fromkeys(_COMPILED, "The compiled package was not measured in this run.")
    parts |= {name: grid.markdown() for name, grid in results.grids.items()}
    return Template(_TEXT.read_text()).substitute(parts)


def _what_the_filter_takes(results: Results) -> str:
    """Of Envoy's own time, whatever answers it."""
    ours, alone, peer = (results.figures(way, "1 kB", 32) for way in (FAST, ALONE, SGLANG))
    if ours is None or alone is None:
        return ""
    told = f"Of the {ours.cpu_us:.0f} us Envoy itself takes {ours.proxy_us:.0f}, "
    told += f"{ours.proxy_us - alone.proxy_us:.0f} more than without the filter"
    return f"{told}; {SGLANG} takes {peer.cpu_us:.0f} in all." if peer else f"{told}."


if __name__ == "__main__":
    write(Path("docs"))
