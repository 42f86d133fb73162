"""`--help` of every command: as complete as a manual page."""

from __future__ import annotations

import argparse
import shlex

import pytest

from extproc.cli import parsers
from extproc.commands.console import Parser

PARSERS = parsers()

every_command = pytest.mark.parametrize("name", PARSERS)


def sections(parser: argparse.ArgumentParser) -> list[str]:
    lines = parser.format_help().splitlines()
    return [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "]


@every_command
def test_has_a_description_examples_and_exit_codes(name: str) -> None:
    parser = PARSERS[name]
    assert isinstance(parser, Parser)
    assert parser.description
    found = sections(parser)
    assert "examples" in found
    assert "exit codes" in found
    assert 0 in parser.exits


@every_command
def test_every_flag_has_a_meaning(name: str) -> None:
    for action in PARSERS[name]._actions:
        assert action.help, action


@every_command
def test_examples_are_accepted(name: str) -> None:
    parser = PARSERS[name]
    assert isinstance(parser, Parser)
    for example in parser.examples:
        words = [word.strip("()") for word in shlex.split(example, comments=True)]
        if "extproc" not in words or name not in words:
            continue
        given = words[words.index(name) + 1 :]
        for end in ("|", "<", ">"):
            given = given[: given.index(end)] if end in given else given
        parser.parse_args(given)


def test_variables_of_flags_are_listed() -> None:
    text = PARSERS["serve"].format_help()
    assert "EXTPROC_LOG_PROMPTS" in text
    assert "EXTPROC_SHARED_STATE_PASSWORD_FILE" in text
    assert "OPENAI_API_KEY" in PARSERS["load"].format_help()
