"""The page docs/performance.md, from the figures of a run.

Run this module to write the page again from the figures of the last run.
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
"""The figures that the page shows."""

_COMPILED = ("decision_compiled", "prefix_cache_compiled")
_SHARED = ("sharing", "shared_server", "shared_index")
_TEXT = Path(__file__).with_name("page.md")


def write(docs: Path) -> None:
    """Write the page from the figures in the same directory."""
    (docs / PAGE).write_text(text(read(docs / FIGURES)))


def text(results: Results) -> str:
    """Return the page."""
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
    parts |= dict.fromkeys(_SHARED, "This run did not measure shared state.")
    parts |= {name: grid.markdown() for name, grid in results.grids.items()}
    return Template(_TEXT.read_text()).substitute(parts)


def _what_the_filter_takes(results: Results) -> str:
    """Return a sentence on Envoy's own CPU time."""
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
