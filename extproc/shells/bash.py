"""Completion in bash, from version 3.2 on, without the package bash-completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from extproc.shells.commands import Command, Value

_SCRIPT = """\
# Completion of extproc in bash. Add to ~/.bashrc: source <(extproc completion bash)
_extproc() {{
    local IFS=$'\\n' word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    COMPREPLY=()
    if [ "$word" = "=" ]; then
        word=""
    elif [ "$before" = "=" ]; then
        before=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W {commands} -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}} $before" in
{values}
    esac
    case "${{COMP_WORDS[1]}} $word" in
{flags}
    esac
    case "${{COMP_WORDS[1]}}" in
{arguments}
    esac
}}
complete -F _extproc extproc
"""


def script(commands: Sequence[Command]) -> str:
    """Return the script."""
    return _SCRIPT.format(
        commands=_words(["--help", "--version", *(one.name for one in commands)]),
        values="\n".join(line for one in commands for line in _values(one)),
        flags="\n".join(_flags(one) for one in commands),
        arguments="\n".join(line for one in commands for line in _arguments(one)),
    )


def _values(command: Command) -> Iterator[str]:
    for flag in command.flags:
        if flag.value is not None:
            patterns = "|".join(quote(f"{command.name} {name}") for name in flag.names)
            yield f"    {patterns}) {_completed(flag.value)}return ;;"


def _flags(command: Command) -> str:
    names = _words([name for flag in command.flags for name in flag.names])
    return f'    "{command.name} -"*) COMPREPLY=($(compgen -W {names} -- "$word")); return ;;'


def _arguments(command: Command) -> Iterator[str]:
    for value in command.arguments[:1]:
        yield f"    {command.name}) {_completed(value)}return ;;"


def _completed(value: Value) -> str:
    if value.options:
        return f'COMPREPLY=($(compgen -W {_words(value.options)} -- "$word")); '
    if value.is_file:
        return 'compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$word")); '
    return ""


def _words(words: Sequence[str]) -> str:
    """Return words for compgen, which splits them at IFS: a line each."""
    return "$'" + "\\n".join(words) + "'"
