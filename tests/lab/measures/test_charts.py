"""Charts: PNG files of a sensible size, always with the same bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from extproc.lab.measures.run import Run

MakeRun = Callable[..., Run]

LOADS = ("800", "1600", "3200", "8000")
SERIES = {
    "Random": (1452.0, 11402.0, 29902.0, 53446.0),
    "LeastLoad": (899.0, 11637.0, None, 43080.0),
    "PrefixHash": (308.0, 216.0, 235.0, 261.0),
}


@pytest.fixture
def runs(make_run: MakeRun) -> list[Run]:
    random = np.random.default_rng(0)
    made = []
    for scale, strategy in enumerate(("Random", "LeastLoad", "PrefixHash"), 1):
        sent = np.sort(random.uniform(0, 100, 500))
        first = sent + random.lognormal(0, 1, 500) * scale
        tokens = np.full(500, 10)
        counts = dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens"), tokens)
        times = {"wanted": sent, "sent": sent, "first": first, "last": first + 1, "gaps": [0.1]}
        made.append(make_run(strategy=strategy, endpoint=tokens % scale, **counts, **times))
    return made


# Imported here, because every process of the suite imports this module, and only one needs charts.
def compare(runs: list[Run], path: Path) -> None:
    from extproc.lab.measures import charts

    charts.compare(runs, path)


def bars(path: Path, *arguments: Any, **options: Any) -> None:
    from extproc.lab.measures import charts

    charts.bars(path, *arguments, **options)


def check(path: Path) -> None:
    image = Image.open(path)
    assert image.format == "PNG"
    assert image.width >= 800
    assert image.height >= 400
    assert len(image.getcolors() or []) > 20
    assert not image.info.keys() & {"Software", "Date"}
    assert 5_000 < path.stat().st_size <= 60_000


def test_compare_draws_runs(runs: list[Run], tmp_path: Path) -> None:
    compare(runs, tmp_path / "a.png")
    check(tmp_path / "a.png")


def test_draws_incomplete_runs(make_run: MakeRun, failed_run: Run, tmp_path: Path) -> None:
    nobody_knows = make_run(cached_tokens=[-1] * 4)
    at_once = make_run(first=[0.0, 1.0, 1.0, np.nan], cached_tokens=[-1] * 4)
    compare([failed_run, nobody_knows, at_once], tmp_path / "a.png")
    check(tmp_path / "a.png")
    compare([failed_run], tmp_path / "b.png")
    bars(tmp_path / "c.png", "Nothing", "ms", LOADS, {"Random": [None] * 4}, log=True)
    assert (tmp_path / "c.png").exists()


def test_bars_with_and_without_published_values(tmp_path: Path) -> None:
    for name, published, log in (("a", None, False), ("b", {"Random": SERIES["Random"]}, True)):
        path = tmp_path / f"{name}.png"
        bars(path, "Mean TTFT", "ms", LOADS, SERIES, published, log=log)
        check(path)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        bars(tmp_path / name, "Mean TTFT", "ms", LOADS, SERIES, SERIES)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_global_state_does_not_change() -> None:
    """Pyplot, which picks a backend, is not loaded, and no other module loads matplotlib."""
    code = (
        "import sys\n"
        "import extproc.lab.measures.comparison, extproc.lab.measures.published\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import extproc.lab.measures.charts\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
