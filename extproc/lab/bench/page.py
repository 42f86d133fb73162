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
        "ways": table(["setup", "description"], list(results.ways.items()), left=2),
        "targets": targets.grid(results).markdown(),
        "filter": _what_the_filter_takes(results),
        "caption": grids.title(results).capitalize(),
        "through": grids.through(results).markdown(),
        "held": grids.held(results).markdown(),
    }
    parts |= dict.fromkeys(_COMPILED, "This run did not measure the compiled package.")
    parts |= {name: grid.markdown() for name, grid in results.grids.items()}
    return Template(_TEXT.read_text()).substitute(parts)


def _what_the_filter_takes(results: Results) -> str:
    """Of Envoy's own time, whatever answers it."""
    ours, alone, peer = (results.figures(way, "1 kB", 32) for way in (FAST, ALONE, SGLANG))
    if ours is None or alone is None:
        return ""
    added = ours.proxy_us - alone.proxy_us
    text = (
        f"Envoy takes {ours.proxy_us:.0f} of the {ours.cpu_us:.0f} us of CPU time per request, "
        f"{added:.0f} us more than without the filter"
    )
    return f"{text}. {SGLANG} takes {peer.cpu_us:.0f} us in total." if peer else f"{text}."


if __name__ == "__main__":
    write(Path("docs"))
