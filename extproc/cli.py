"""The command line: arguments and environment in, exit codes out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points

from extproc import __version__
from extproc.app import COMPILED
from extproc.commands import check, explain, serve
from extproc.commands.console import OK, Parser, complain


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has seen enough; at exit there must be nothing left to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _run(given: Sequence[str]) -> int:
    extension = next((one for one in _extensions() if [one.name] == given[:1]), None)
    if extension is not None:
        return _run_extension(extension, given[1:])
    parsed = parser().parse_args(given)
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)


def _extensions() -> list[EntryPoint]:
    """Commands of packages beside the data path, which it must not import."""
    return sorted(entry_points(group="extproc.commands"), key=lambda one: one.name)


def _extras(extension: EntryPoint) -> str:
    return f"[{','.join(extension.extras)}]" if extension.extras else ""


def _run_extension(extension: EntryPoint, given: Sequence[str]) -> int:
    try:
        run: Callable[[Sequence[str]], int] = extension.load()
        return run(given)
    except ModuleNotFoundError as error:
        if (error.name or "extproc").startswith("extproc"):
            raise
        return complain(
            f"extproc {extension.name}: {error.name} is not installed: this command needs "
            f"pip install 'extproc{_extras(extension)}'"
        )


def parser() -> argparse.ArgumentParser:
    """Of all commands."""
    extproc = Parser(
        prog="extproc",
        description="Routes LLM requests behind Envoy to the vLLM replica whose prefix cache is "
        "warm, without overloading it.",
    )
    version = f"extproc {__version__}{' (compiled)' if COMPILED else ''}"
    extproc.add_argument("--version", action="version", version=version)
    commands = extproc.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (serve, check, explain):
        command.add(commands)
    for extension in _extensions():
        extras = _extras(extension)
        text = f"of extproc{extras}: see its own --help"
        commands.add_parser(extension.name, help=text, description=f"Comes with {text[3:]}.")
    return extproc
