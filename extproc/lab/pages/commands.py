"""The reference of commands: flags, environment variables and defaults."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from unittest.mock import patch

from extproc import cli
from extproc.commands.console import Parser
from extproc.lab.pages.lines import NOTHING, code, heading, paragraph, table


class Flag(NamedTuple):
    """A flag or argument of a command."""

    name: str
    variable: str
    default: str
    meaning: str


def commands() -> Iterator[str]:
    """Return the lines of the section."""
    yield from heading("Commands")
    yield (
        "`ADDR` is `HOST:PORT` or `unix:PATH`. A flag overrides its environment variable. The "
        "variable of a flag without a value is `1`, `true`, `yes` or `on`."
    )
    for command, parser in _parsers().items():
        yield from heading(f"`{command}`", level=3)
        yield from paragraph(f"{parser.description} {parser.epilog or ''}")
        rows = [
            (code(flag.name), code(flag.variable), flag.default, flag.meaning)
            for flag in flags(command)
        ]
        if rows:
            yield from table(("flag", "environment variable", "default", "meaning"), rows)
        if isinstance(parser, Parser):
            yield from _examples_and_exits(parser)


def _examples_and_exits(parser: Parser) -> Iterator[str]:
    if parser.exits:
        meanings = (f"{number}: {meaning}" for number, meaning in parser.exits.items())
        yield ""
        yield from paragraph(f"Exit codes: {'; '.join(meanings)}.")
    if parser.examples:
        yield ""
        yield "```sh"
        width = max(map(len, parser.examples))
        for command, purpose in parser.examples.items():
            yield f"{command:<{width}}  # {purpose}"
        yield "```"


def flags(command: str) -> list[Flag]:
    """Return the flags and arguments of a command, independent of this process's environment."""
    parser = _parser(command, {})
    actions = [action for action in parser._actions if action.dest != "help"]
    # A flag reads its variable if setting that changes the default.
    changed = _parser(command, {_variable(action): "true" for action in actions})
    return [
        _flag(parser, action, changed.get_default(action.dest) != action.default)
        for action in actions
    ]


def _parser(command: str, environment: Mapping[str, str]) -> argparse.ArgumentParser:
    with patch.dict(os.environ, environment, clear=True):
        return _parsers()[command]


def _parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by its name."""
    commands = next(
        one for one in cli.full_parser()._actions if isinstance(one, argparse._SubParsersAction)
    )
    return {parser.prog: parser for parser in commands.choices.values()}


def _flag(parser: argparse.ArgumentParser, action: argparse.Action, by_variable: bool) -> Flag:
    meaning = parser._get_formatter()._expand_help(action)
    with_default = re.fullmatch(r"(.*) \(default: (.*)\)", meaning)
    name = " ".join(filter(None, [*action.option_strings[-1:], str(action.metavar or "")]))
    return Flag(
        name,
        _variable(action) if by_variable else "",
        "required" if action.required else with_default[2] if with_default else NOTHING,
        with_default[1] if with_default else meaning,
    )


def _variable(action: argparse.Action) -> str:
    return f"EXTPROC_{action.dest.upper()}"
