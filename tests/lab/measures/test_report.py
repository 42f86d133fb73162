"""Reports: a single file that loads nothing, with the charts of the runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from extproc.lab.measures.run import Run

MakeRun = Callable[..., Run]

STRATEGIES = ("PrefixCache", "RoundRobin")
LOG: list[dict[str, object]] = [
    {"strategy": "PrefixHash", "reason": "<bound>"},
    {"strategy": "PrefixHash", "hops": 2},
]


# Imported here, because every process of the suite imports this module, and only one needs charts.
def html(*runs: Run, title: str = "A run", log: list[dict[str, object]] | None = None) -> str:
    from extproc.lab.measures.report import Report

    return Report(title, "tests & more", runs, log or []).html()


def variables() -> dict[str, tuple[str, str]]:
    from extproc.lab.measures.report_charts import VARIABLES

    return dict(VARIABLES)


class Page(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def runs(make_run: MakeRun) -> list[Run]:
    return [make_run(strategy=strategy) for strategy in STRATEGIES]


def test_is_well_formed(runs: list[Run]) -> None:
    assert Page(html(*runs, log=LOG)).open == []


def test_loads_nothing(runs: list[Run]) -> None:
    text = html(*runs)
    for tag, name, value in Page(text).attributes:
        assert tag not in ("script", "link", "img", "iframe"), tag
        if name in ("src", "href", "xlink:href", "srcset"):
            assert value.startswith("#"), value
    style = text[: text.index("</style>")]
    assert "@import" not in style
    assert not re.search(r"url\((?!#)", text)


def test_has_the_charts(runs: list[Run]) -> None:
    text = html(*runs)
    assert text.count("<svg") == 4
    texts = Page(text).texts
    for title in (
        "Requests with their first token within a time (%)",
        "TTFT (ms, log scale)",
        "Prefix cache hits (% of the prompts' tokens)",
        "Requests of each endpoint (1 = the mean of all)",
    ):
        assert title in texts, title


def test_leaves_out_what_is_not_known(make_run: MakeRun, failed_run: Run) -> None:
    unknown = make_run(cached_tokens=[-1] * 4, endpoint=[-1] * 4)
    assert html(unknown).count("<svg") == 2
    assert "Decision log" not in html(unknown)
    assert Page(html(failed_run)).open == []


def test_has_the_strategies_in_the_order_of_all_charts(runs: list[Run]) -> None:
    cells = re.findall(r"<tr><td>(\w+)", html(*runs))
    assert cells == ["RoundRobin", "PrefixCache"]


def test_has_its_source_and_the_decision_log(runs: list[Run]) -> None:
    texts = Page(html(*runs, title="<b>", log=LOG)).texts
    assert "Source: tests & more" in texts
    assert "<b>" in texts
    assert "<bound>" in texts


def test_colors_follow_the_theme(runs: list[Run]) -> None:
    text = html(*runs)
    drawings = text[text.index("</style>") :]
    used = set(re.findall(r"var\((--[\w-]+)\)", drawings))
    assert used >= {"--text", "--grid", "--roundrobin", "--prefixcache"}
    assert used <= set(variables())
    assert "#000000" not in drawings
    assert "prefers-color-scheme: dark" in text


def test_every_color_is_a_variable_of_its_own() -> None:
    for theme in (0, 1):
        colors = [pair[theme].lower() for pair in variables().values()]
        assert len(set(colors)) == len(colors)


def test_the_same_figures_give_the_same_bytes(runs: list[Run], tmp_path: Path) -> None:
    assert html(*runs) == html(*runs)
