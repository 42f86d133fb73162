"""Commands, flags and values, as far as a shell can complete them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LONGEST_MEANING = 70


@dataclass(frozen=True)
class Value:
    """The value of a flag, or an argument without a flag."""

    name: str
    """Its name in the help."""
    options: Sequence[str] = ()
    """All possible values; empty if there are too many."""
    is_file: bool = False


@dataclass(frozen=True)
class Flag:
    """A flag of a command."""

    names: Sequence[str]
    meaning: str
    value: Value | None
    """None for a switch."""


@dataclass(frozen=True)
class Command:
    """A command with its flags and arguments."""

    name: str
    meaning: str
    flags: Sequence[Flag]
    arguments: Sequence[Value]


def commands(parsers: Mapping[str, argparse.ArgumentParser]) -> list[Command]:
    """Return the commands of these parsers."""
    return [
        Command(name, _meaning(parser.description or ""), [*_flags(parser)], [*_arguments(parser)])
        for name, parser in parsers.items()
    ]


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    for action in parser._actions:
        if action.option_strings and action.help is not argparse.SUPPRESS:
            value = None if action.nargs == 0 else _value(action)
            yield Flag(tuple(action.option_strings), _meaning(action.help or ""), value)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Value]:
    return (_value(action) for action in parser._actions if not action.option_strings)


def _value(action: argparse.Action) -> Value:
    name = str(action.metavar or action.dest)
    options: Iterable[object] = action.choices or getattr(action.type, "options", None) or ()
    is_file = action.type is Path or "FILE" in name
    return Value(name, tuple(map(str, options)), is_file)


def _meaning(text: str) -> str:
    """Return the beginning of a text, as long as a line in a menu."""
    first = re.split(r"[:;.(]\s|\s\(|\.$", text.replace("%%", "%"))[0]
    if len(first) <= _LONGEST_MEANING:
        return first
    return first[:_LONGEST_MEANING].rsplit(" ", 1)[0] + " ..."
