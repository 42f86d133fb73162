"""Completion in fish, with the meaning of each command and flag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extproc.shells.commands import Command, Flag, Value


def script(commands: Sequence[Command]) -> str:
    """Return the script."""
    return "\n".join(_lines(commands)) + "\n"


def _lines(commands: Sequence[Command]) -> Iterator[str]:
    yield "# Completion of extproc in fish: extproc completion fish | source"
    yield "complete -c extproc -f"
    yield "complete -c extproc -n __fish_use_subcommand -l help -d 'show the help'"
    yield "complete -c extproc -n __fish_use_subcommand -l version -d 'print the version'"
    for command in commands:
        meaning = _quoted(command.meaning)
        yield f"complete -c extproc -n __fish_use_subcommand -a {command.name} -d {meaning}"
    for command in commands:
        condition = f"complete -c extproc -n '__fish_seen_subcommand_from {command.name}'"
        for flag in command.flags:
            yield f"{condition} {_flag(flag)}"
        for value in command.arguments[:1]:
            if value.is_file or value.options:
                yield f"{condition} {_value(value)}"


def _flag(flag: Flag) -> str:
    names = (
        f"-l {name.removeprefix('--')}" if name.startswith("--") else f"-s {name.removeprefix('-')}"
        for name in flag.names
    )
    value = "" if flag.value is None else f" {_required(flag.value)}"
    return f"{' '.join(names)}{value} -d {_quoted(flag.meaning)}"


def _required(value: Value) -> str:
    if value.is_file:
        return "-r -F"
    return f"-x -a {_quoted(' '.join(value.options))}" if value.options else "-x"


def _value(value: Value) -> str:
    return f"-a {_quoted(' '.join(value.options))}" if value.options else "-F"


def _quoted(text: str) -> str:
    """Return a text in single quotes, in which fish knows two escapes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
