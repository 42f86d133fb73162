"""What all commands share: their flags, each an environment variable too, and their exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

OK = 0
REFUSED = 1
"""A request would be refused: the outcome of `explain`, not an error of its own."""
BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def flag(
    parser: argparse.ArgumentParser,
    name: str,
    default: str | None,
    kind: Callable[[str], object],
    metavar: str,
    text: str,
) -> None:
    """A flag whose default is its environment variable, if that is set."""
    default = _environment(name) or default
    shown = f"{text} (default: %(default)s)" if default else text
    parser.add_argument(
        name, default=default, required=default is None, type=kind, metavar=metavar, help=shown
    )


def optional(
    parser: argparse.ArgumentParser,
    name: str,
    kind: Callable[[str], object],
    metavar: str,
    text: str,
) -> None:
    """A flag that need not be given, by its environment variable if that is set."""
    parser.add_argument(name, default=_environment(name), type=kind, metavar=metavar, help=text)


def switch(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """A flag without a value; its environment variable says 1, true, yes or on."""
    default = _is_true(_environment(name))
    parser.add_argument(name, action="store_true", default=default, help=text)


def _environment(flag: str) -> str | None:
    # An empty variable is one that was not set: deployments template them.
    return os.environ.get("EXTPROC_" + flag[2:].replace("-", "_").upper()) or None


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() in ("1", "true", "yes", "on")


def complain(*lines: str) -> int:
    """Prints them to stderr; returns the exit code."""
    print(*lines, sep="\n", file=sys.stderr)
    return BAD_INPUT
