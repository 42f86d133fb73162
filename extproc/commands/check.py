"""`extproc check`: validates a models document."""

from __future__ import annotations

import argparse

from extproc.adapters.configuration.document import DocumentError, parse
from extproc.commands.console import OK, Parser, complain, file_path


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "check",
        help="validate a models document",
        description="Validates a models document and prints a line for every problem, in the form "
        "FILE: models[1].key: what is wrong.",
        examples={
            "extproc check models.yaml": "validate a document",
            "extproc check /dev/stdin < models.yaml": "validate a document from a pipe",
        },
        exits={0: "there is no problem", 2: "there is a problem, or no such file"},
    )
    parser.add_argument("file", type=file_path, metavar="FILE", help="the models document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        parse(arguments.file.read_bytes())
    except DocumentError as error:
        return complain(*(f"{arguments.file}: {problem}" for problem in error.problems))
    except OSError as error:
        return complain(f"{arguments.file}: {error.strerror}")
    return OK
