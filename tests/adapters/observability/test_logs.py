from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from extproc.adapters.observability import logs

Lines = Callable[[], list[str]]

BREAKS = "a\nb\r\nc\u2028d\x85e\x0bf"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the loggers, which all tests share."""
    root, ours = logging.getLogger(), logging.getLogger("extproc")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture
def lines(capfd: pytest.CaptureFixture[str]) -> Lines:
    """Return the new lines on stderr, split at every kind of line break."""

    def since() -> list[str]:
        logs.flush()
        captured = capfd.readouterr()
        assert captured.out == ""
        return captured.err.splitlines()

    return since


def test_text_line_has_time_level_message_and_fields(lines: Lines) -> None:
    logs.configure("info", "text")
    logging.getLogger("extproc.x").info("hello", extra=logs.fields(model="llama", n=3))
    (line,) = lines()
    time, rest = line.split(" ", 1)
    assert time.endswith("Z")
    assert rest == "INFO hello model=llama n=3"


def test_json_line_has_time_level_logger_message_and_fields(lines: Lines) -> None:
    logs.configure("info", "json")
    logging.getLogger("extproc.x").info("hello", extra=logs.fields(model="llama", n=3))
    (line,) = lines()
    read = json.loads(line)
    assert read.pop("time").endswith("Z")
    assert read == {
        "level": "INFO",
        "logger": "extproc.x",
        "message": "hello",
        "model": "llama",
        "n": 3,
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a\nb", r'"a\nb"'),
        (None, "None"),
        (1.5, "1.5"),
    ],
)
def test_field_is_quoted_unless_it_is_one_plain_word(
    value: object, shown: str, lines: Lines
) -> None:
    logs.configure("info", "text")
    logging.getLogger("extproc").info("x", extra=logs.fields(field=value))
    (line,) = lines()
    assert line.endswith(f" x field={shown}")


@pytest.mark.parametrize("form", ["text", "json"])
class TestOneLinePerRecord:
    def test_with_any_field_value(self, form: Literal["text", "json"], lines: Lines) -> None:
        logs.configure("info", form)
        logging.getLogger("extproc").info("x", extra=logs.fields(why=BREAKS, error=OSError(BREAKS)))
        assert len(lines()) == 1

    def test_with_any_message_of_a_library(
        self, form: Literal["text", "json"], lines: Lines
    ) -> None:
        # asyncio's reports of forgotten exceptions have several lines.
        logs.configure("info", form)
        logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: %s", BREAKS)
        assert len(lines()) == 1

    def test_with_the_traceback_of_an_exception(
        self, form: Literal["text", "json"], lines: Lines
    ) -> None:
        logs.configure("info", form)
        try:
            raise ValueError(BREAKS)
        except ValueError:
            logging.getLogger("extproc").exception("failed", extra=logs.fields(model="llama"))
        (line,) = lines()
        assert "ValueError" in line
        assert "Traceback" in line

    def test_with_any_field_type(self, form: Literal["text", "json"], lines: Lines) -> None:
        logs.configure("info", form)
        logging.getLogger("extproc").info("x", extra=logs.fields(a=object(), b=[1], c={"d": set()}))
        assert len(lines()) == 1


@pytest.mark.parametrize("level", ["warning", "WARNING"])
def test_lines_below_the_level_are_omitted(level: str, lines: Lines) -> None:
    logs.configure(level, "text")
    logging.getLogger("extproc").info("quiet")
    logging.getLogger("extproc").warning("loud")
    (line,) = lines()
    assert line.endswith("WARNING loud")


def test_second_configure_replaces_the_handler(lines: Lines) -> None:
    logs.configure("info", "text")
    logs.configure("info", "json")
    logging.getLogger("extproc").info("x")
    assert len(lines()) == 1


def test_nothing_is_written_without_stderr(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    # The next opened file gets this descriptor.
    monkeypatch.setattr("sys.stderr", None)
    logs.configure("info", "text")
    logging.getLogger("extproc").info("x")
    assert lines() == []


def test_unwritable_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        logs.configure("info", "text")
        logging.getLogger("extproc").info("x")
        logs.flush()
        assert logs.dropped() == 1
