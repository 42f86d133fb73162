"""Flags, which can also be environment variables, and exit codes of the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

OK = 0
REFUSED = 1
"""A result of `explain`, which is not an error: the sidecar would refuse the request."""
BAD_INPUT = 2
NOT_WRITTEN = 3
"""The output cannot be written, for example because the disk is full."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")

_NONE: Mapping[str, str] = MappingProxyType({})
_NO_EXITS: Mapping[int, str] = MappingProxyType({})


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line. Its help is as complete as a manual page."""

    def __init__(
        self,
        *arguments: Any,
        examples: Mapping[str, str] = _NONE,
        exits: Mapping[int, str] = _NO_EXITS,
        environment: Mapping[str, str] = _NONE,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.examples = examples
        """Purposes of command lines."""
        self.exits = exits
        """Meanings of exit codes."""
        self.environment = dict(environment)
        """Meanings of environment variables."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message. An error of stdout is raised, which argparse would ignore."""
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def format_help(self) -> str:
        """Return the help with examples, exit codes and environment variables."""
        return super().format_help() + "".join(self._sections())

    def _sections(self) -> Iterator[str]:
        if self.examples:
            yield "\nexamples:\n"
            for command, purpose in self.examples.items():
                yield f"  # {purpose}\n  {command}\n"
        if self.exits:
            yield "\nexit codes:\n"
            yield from (f"  {code:<4} {meaning}\n" for code, meaning in self.exits.items())
        if self.environment:
            yield "\nenvironment variables (a flag overrides its own):\n"
            width = max(map(len, self.environment))
            for name, meaning in self.environment.items():
                yield f"  {name:<{width}}  {meaning}\n"


def flag(
    parser: Parser,
    name: str,
    default: str | None,
    kind: Callable[[str], object],
    metavar: str,
    text: str,
) -> None:
    """Add a flag. Its environment variable, if set, replaces the default."""
    default = _environment(parser, name) or default
    shown = f"{text} (default: %(default)s)" if default else text
    parser.add_argument(
        name, default=default, required=default is None, type=kind, metavar=metavar, help=shown
    )


def optional(
    parser: Parser,
    name: str,
    kind: Callable[[str], object],
    metavar: str,
    text: str,
) -> None:
    """Add an optional flag. Its environment variable, if set, is the default."""
    default = _environment(parser, name)
    parser.add_argument(name, default=default, type=kind, metavar=metavar, help=text)


def switch(parser: Parser, name: str, text: str) -> None:
    """Add a flag without a value. Its environment variable may be 1, true, yes or on.

    It may also be 0, false, no or off, like an empty one.
    """
    default = _environment(parser, name) or False
    # argparse converts a default that is a text.
    parser.add_argument(name, action="store_true", default=default, help=text).type = _boolean


def _environment(parser: Parser, flag: str) -> str | None:
    """Return the value of a flag's variable, and list the variable in the help."""
    variable = "EXTPROC_" + flag[2:].replace("-", "_").upper()
    parser.environment[variable] = flag
    # Deployment templates set empty variables, so an empty one counts as unset.
    return os.environ.get(variable) or None


def _boolean(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join((*_TRUE, *_FALSE))}")
    return text.lower() in _TRUE


def file_path(text: str) -> Path:
    if not text:
        # Path would turn it into the current directory.
        raise argparse.ArgumentTypeError("the name of the file is empty")
    return Path(text)


def complain(*lines: str) -> int:
    """Print lines to stderr, if possible. Return the exit code for bad input."""
    with suppress(OSError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)
    return BAD_INPUT
