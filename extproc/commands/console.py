"""Flags, which can also be environment variables, and exit codes of the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

OK = 0
REFUSED = 1
"""A result of `explain`, which is not an error: the sidecar would refuse the request."""
BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

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
    """Add a flag. Its environment variable, if set, replaces the default."""
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
    """Add an optional flag. Its environment variable, if set, is the default."""
    parser.add_argument(name, default=_environment(name), type=kind, metavar=metavar, help=text)


def switch(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add a flag without a value. Its environment variable may be 1, true, yes or on."""
    default = _is_true(_environment(name))
    parser.add_argument(name, action="store_true", default=default, help=text)


def _environment(flag: str) -> str | None:
    # Deployment templates set empty variables, so an empty one counts as unset.
    return os.environ.get("EXTPROC_" + flag[2:].replace("-", "_").upper()) or None


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() in ("1", "true", "yes", "on")


def complain(*lines: str) -> int:
    """Print lines to stderr. Return the exit code for bad input."""
    print(*lines, sep="\n", file=sys.stderr)
    return BAD_INPUT
