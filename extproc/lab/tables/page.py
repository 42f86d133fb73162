"""The page docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path
from string import Template

from extproc.lab.engine import profile
from extproc.lab.simulation.client import SINGLE_THREADED
from extproc.lab.tables import blog, chat, lora, threads
from extproc.lab.tables.cells import Figures
from extproc.lab.tables.comparison import draw
from extproc.lab.tables.markdown import table

CELLS = [*chat.CELLS, *threads.CELLS, *lora.CELLS, *blog.CELLS]

_TEXT = Path(__file__).with_name("page.md")

_CHARTS = "benchmarks"
"""The directory of the charts, below that of the page."""


def write(figures: Figures, docs: Path) -> None:
    """Write the page and its charts."""
    directory = docs / _CHARTS
    directory.mkdir(exist_ok=True)
    of_chat = draw(chat.FITTED, figures, directory)
    of_threads = draw(threads.CELLS, figures, directory)
    page = text(figures, _images(of_chat), _images(of_threads))
    (docs / "benchmarks.md").write_text(page)


def text(figures: Figures, chat_charts: str = "", threads_charts: str = "") -> str:
    """Return the page."""
    parts = {
        "chat_fitted": chat.fitted(figures),
        "chat_charts": chat_charts,
        "chat_ideal": chat.ideal(figures),
        "sensitivities": chat.sensitivities(figures),
        "profile": _profile(),
        "client": _client(),
        "threads_held_out": threads.held_out(figures),
        "threads_verdict": threads.verdict(figures),
        "threads_second_run": threads.second_run(),
        "threads_charts": threads_charts,
        "blog": blog.compared(figures),
        "blog_gains": blog.gains(figures),
        "blog_cliff": blog.cliff(figures),
    }
    for workload in lora.WORKLOADS:
        name = workload.replace("-", "_")
        parts[name] = lora.compared(workload, figures)
        parts[f"{name}_claims"] = lora.claims(workload, figures)
    return Template(_TEXT.read_text()).substitute(parts)


def _images(charts: list[tuple[str, Path]]) -> str:
    return "\n\n".join(f"![{title}]({_CHARTS}/{path.name})" for title, path in charts)


def _profile() -> str:
    fields = profile.as_fields(profile.L4_LLAMA_3_1_8B_FP8)
    rows = [[f"`{name}`", f"{value:g}"] for name, value in fields.items() if name != "name"]
    return table(["parameter", "fitted"], rows)


def _client() -> str:
    costs = SINGLE_THREADED
    return (
        f"{costs.per_chunk * 1e6:.0f} µs to read a token and {costs.per_request * 1e3:.2f} ms to "
        f"send a request, the latter in {costs.turns_per_request} turns of its event loop"
    )
