from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge
from pydantic import BaseModel

from extproc.adapters.configuration.docstrings import attribute_docstrings
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.fleet import Fleet
from extproc.core.routing.catalog import Catalog
from extproc.lab.pages.commands import flags
from extproc.lab.pages.docstrings import Undocumented, documented
from extproc.lab.pages.document import default, values
from extproc.lab.pages.metrics import metrics
from extproc.lab.pages.reference import page
from extproc.lab.pages.strategies import strategy_in_words

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "docs" / "reference.md"


def test_the_committed_page_matches_the_code() -> None:
    current = COMMITTED.read_text() == page()
    assert current, f"{COMMITTED.name} does not match the code: run `make reference`"


class Example(BaseModel):
    """Model for the tests below."""

    documented: int = 1
    """A meaning,
    in two lines."""

    bare: int = 2
    also_bare: int = 3


class TestAttributeDocstrings:
    def test_become_one_line_each(self) -> None:
        assert attribute_docstrings(Example) == {"documented": "A meaning, in two lines."}

    def test_are_found_in_a_class_inside_another_scope(self) -> None:
        class Inner:
            value = 1
            """Its meaning."""

        assert attribute_docstrings(Inner) == {"value": "Its meaning."}

    def test_missing_docstring_raises(self) -> None:
        with pytest.raises(Undocumented, match=r"Example\.bare has no docstring"):
            documented(Example, Example.model_fields)


class TestValues:
    def test_are_described_in_words(self) -> None:
        assert values({"type": "integer", "minimum": 1, "maximum": 2000}) == (
            "whole number from 1 to 2,000"
        )
        assert values({"type": "array", "items": {"enum": ["a", "b"]}}) == "list of: `a`, `b`"
        assert values({"anyOf": [{"format": "IP:PORT"}, {"type": "null"}]}) == "IP:PORT"

    def test_of_an_unknown_type_raise(self) -> None:
        with pytest.raises(TypeError, match="'object'"):
            values({"type": "object"})


class TestDefaults:
    def test_are_shown_also_if_they_are_zero(self) -> None:
        assert default({"default": 0}) == "`0`"
        assert default({"default": False}) == "`false`"

    def test_are_none_if_nothing_is_configured(self) -> None:
        empty: tuple[object, ...] = (None, (), [], "")
        assert {default({"default": value}) for value in empty} == {"none"}


def test_a_strategy_is_described_by_its_module() -> None:
    assert strategy_in_words("RoundRobin") == "Each endpoint in turn."


class TestFlags:
    def test_name_the_environment_variables_that_set_them(self) -> None:
        explain = {flag.name: flag.variable for flag in flags("extproc explain")}
        assert explain["--models FILE"] == "EXTPROC_MODELS"
        assert explain["--json"] == ""
        assert all(flag.variable for flag in flags("extproc serve"))

    def test_do_not_depend_on_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = flags("extproc serve")
        monkeypatch.setenv("EXTPROC_LISTEN", "unix:/elsewhere")
        monkeypatch.setenv("EXTPROC_ALLOW_LOOPBACK", "true")
        assert flags("extproc serve") == before

    def test_have_a_default_or_are_required(self) -> None:
        defaults = {flag.name: flag.default for flag in flags("extproc serve")}
        assert defaults["--listen ADDR"] == "127.0.0.1:9002"
        assert [flag.default for flag in flags("extproc check")] == ["required"]


def test_metrics_are_listed_before_their_first_sample() -> None:
    telemetry = Telemetry(Fleet(), Catalog)
    Counter("extproc_new", "Help.", ["label"], registry=telemetry._registry)
    Gauge("other_project", "Help.", registry=telemetry._registry)
    found = {metric.name: metric for metric in metrics(telemetry)}
    assert found["extproc_new_total"][1:] == ("counter", ("label",), "Help.")
    assert found["extproc_inflight_requests"].labels == ("model", "endpoint")
    assert "other_project" not in found


def test_every_metric_of_the_code_is_on_the_page() -> None:
    sources = (ROOT / "extproc/adapters/observability").glob("*.py")
    declared = {
        name for one in sources for name in re.findall('"(extproc_[a-z_]+)"', one.read_text())
    }
    listed = re.findall(
        r"^\| `(extproc_[a-z_]+?)(?:_total)?` ", COMMITTED.read_text(), re.MULTILINE
    )
    assert declared == set(listed)
