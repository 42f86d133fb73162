"""`extproc schema`: prints the JSON Schema of the models document."""

from __future__ import annotations

import argparse
import json

from extproc.adapters.configuration.json_schema import json_schema
from extproc.commands.console import OK, Parser


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "schema",
        help="print the JSON Schema of the models document",
        description="Prints the JSON Schema of the models document, with which editors complete "
        "keys, show their meaning and mark mistakes. 'extproc check' finds more: contradictions "
        "between values, such as names that occur twice.",
        examples={"extproc schema > models.schema.json": "write the schema to a file"},
        exits={0: "the schema was printed"},
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    print(text(), end="")
    return OK


def text() -> str:
    """Return the schema as a file has it."""
    return json.dumps(json_schema(), indent=2) + "\n"
