"""Completion in zsh, with the meaning of each flag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from extproc.shells.commands import Command, Flag, Value

_SCRIPT = """\
#compdef extproc
# Completion of extproc in zsh. Add to ~/.zshrc, after compinit: source <(extproc completion zsh)
_extproc() {{
    local -a commands
    commands=(
{commands}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        _values flag --help --version
        return
    fi
    local name=$words[2]
    shift words
    (( CURRENT-- ))
    case $name in
{cases}
    esac
}}
if [ "$funcstack[1]" = _extproc ]; then
    _extproc "$@"
else
    compdef _extproc extproc
fi
"""


def script(commands: Sequence[Command]) -> str:
    """Return the script."""
    described = (f"        {quote(f'{one.name}:{one.meaning}')}" for one in commands)
    cases = (f"    {one.name})\n        _arguments {_arguments(one)} ;;" for one in commands)
    return _SCRIPT.format(commands="\n".join(described), cases="\n".join(cases))


def _arguments(command: Command) -> str:
    specs = [*_flags(command.flags), *(f"*{_value(one)}" for one in command.arguments)]
    return " \\\n            ".join(map(quote, specs))


def _flags(flags: Sequence[Flag]) -> Iterator[str]:
    for flag in flags:
        value = "" if flag.value is None else _value(flag.value)
        for name in flag.names:
            # With *, a flag is offered again after its first use: some flags may be repeated.
            yield f"*{name}[{_escaped(flag.meaning)}]{value}"


def _value(value: Value) -> str:
    if value.options:
        return f":{_escaped(value.name)}:({' '.join(value.options)})"
    return f":{_escaped(value.name)}:{'_files' if value.is_file else ' '}"


def _escaped(text: str) -> str:
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    return text
