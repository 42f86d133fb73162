"""The command line `extproc`.

A command's module is imported only when it is needed: `extproc --version` imports none.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from extproc import __version__
from extproc.commands.console import INTERRUPTED, NOT_WRITTEN, OK, Parser, complain
from extproc.compiled import COMPILED

COMMANDS = ("serve", "check", "explain", "envoy-config", "reach", "schema", "completion")
"""Commands that need no extra. Each has a module in extproc/commands, with `_` instead of `-`."""

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_NONE: Mapping[str, str] = MappingProxyType({})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _open_missing_streams()
    try:
        try:
            return _run(given)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        _discard_output()
        return OK
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        _discard_output()
        complain(f"extproc: cannot write the output: {error.strerror}")
        return NOT_WRITTEN
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_missing_streams() -> None:
    """Open /dev/null for each standard stream that is closed.

    Otherwise a socket would get its number. uvloop ends the process when it closes such a socket.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - stays open until the end


def _discard_output() -> None:
    """Discard what was not written, because the flush at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: Sequence[str]) -> int:
    name = given[0] if given else ""
    if name in COMMANDS:
        parser = _parser(name)
    elif name == "--version":
        parser = _parser()
    else:
        # Reading the metadata of installed packages takes longer than all steps before it.
        from extproc.commands.extensions import extensions, run_extension

        extension = extensions().get(name)
        if extension is not None:
            return run_extension(extension, given[1:])
        parser = full_parser()
    parsed, unknown = parser.parse_known_args(given)
    if unknown:
        parser.prog = f"{parser.prog} {name}"  # for the error to name this command's help
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    parsed.parsers = parsers  # for completion, which covers all commands
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)


def full_parser() -> Parser:
    """Return a parser of all commands, extensions included."""
    from extproc.commands.extensions import extensions, summary

    texts = {name: summary(extension) for name, extension in extensions().items()}
    return _parser(*COMMANDS, extensions=texts)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command that can run, by its name."""
    from extproc.commands.extensions import extension_parser, extensions

    found: dict[str, argparse.ArgumentParser] = dict(_subparsers(_parser(*COMMANDS)))
    for name, extension in extensions().items():
        parser = extension_parser(extension)
        if parser is not None:
            found[name] = parser
    return found


def _subparsers(parser: Parser) -> Mapping[str, Parser]:
    action = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return action.choices


def _parser(*names: str, extensions: Mapping[str, str] = _NONE) -> Parser:
    """Return a parser of some commands; `extensions` maps names to help texts."""
    extproc = Parser(
        prog="extproc",
        description="Routes LLM requests behind Envoy to the vLLM replica whose prefix cache is "
        "warm, without overloading it.",
    )
    version = f"extproc {__version__}{' (compiled)' if COMPILED else ''}"
    extproc.add_argument("--version", action="version", version=version)
    commands = extproc.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        import_module(f"extproc.commands.{name.replace('-', '_')}").add(commands)
    for name, text in extensions.items():
        more = f"See extproc {name} --help."
        commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}")
    return extproc
