"""`extproc completion`: prints a shell's completion script."""

from __future__ import annotations

import argparse
from types import MappingProxyType

from extproc.commands.console import OK, Parser
from extproc.shells import bash, fish, zsh
from extproc.shells.commands import commands

SHELLS = MappingProxyType({"bash": bash.script, "zsh": zsh.script, "fish": fish.script})


def add(subcommands: argparse._SubParsersAction[Parser]) -> None:
    parser = subcommands.add_parser(
        "completion",
        help="print a script that completes commands and flags in a shell",
        description="Prints a script with which bash, zsh or fish completes commands, flags and "
        "their values. It has the commands of all extras that are installed.",
        examples={
            "source <(extproc completion bash)": "bash: add it to ~/.bashrc",
            "source <(extproc completion zsh)": "zsh: add it to ~/.zshrc, after compinit",
            "extproc completion fish | source": "fish: add it to ~/.config/fish/config.fish",
        },
        exits={0: "the script was printed", 2: "no such shell"},
    )
    parser.add_argument("shell", choices=list(SHELLS), metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    print(SHELLS[arguments.shell](commands(arguments.parsers())), end="")
    return OK
