"""`extproc explain`: shows what would happen to a request, and why."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from extproc.adapters.models_document import DocumentError, parse
from extproc.commands.console import OK, Parser, complain, flag
from extproc.commands.values import byte_count, header, load
from extproc.core.spec import ModelsSpec
from extproc.explain import explain


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="show what would happen to a request, and why",
        description="Runs a request through the steps that 'serve' would take: model, adapter, "
        "prefix, hash, candidates with their loads, bound, pick. Nothing is sent anywhere.",
    )
    flag(parser, "--models", None, Path, "FILE", "the models document")
    parser.add_argument(
        "--body", default="-", metavar="FILE|-", help="the request's body (default: stdin)"
    )
    parser.add_argument(
        "--path",
        default="/v1/chat/completions",
        metavar="PATH",
        help="the request's path (default: %(default)s)",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        type=header,
        metavar="NAME:VALUE",
        help="a request header; may be repeated",
    )
    parser.add_argument(
        "--head",
        type=byte_count,
        metavar="BYTES",
        help="show the router no more of the body than this, as Envoy's buffer limit does",
    )
    parser.add_argument(
        "--inflight",
        action="append",
        default=[],
        type=load,
        metavar="IP:PORT=N",
        help="assume N requests in flight on an endpoint; may be repeated (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        spec = _static(parse(arguments.models.read_bytes()))
        body = _body(arguments.body)
    except DocumentError as error:
        return complain(*(f"{arguments.models}: {problem}" for problem in error.problems))
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}")
    head = body if arguments.head is None else body[: arguments.head]
    explanation = explain(
        spec,
        head,
        complete=len(head) == len(body),
        path=arguments.path,
        # Clients say how long the body is, though not all of it may be shown.
        headers={"content-length": str(len(body)), **dict(arguments.header)},
        inflight=dict(arguments.inflight),
    )
    if arguments.json:
        print(json.dumps(explanation.as_dict()))
    else:
        print(*explanation.lines(), sep="\n")
    return OK


def _static(spec: ModelsSpec) -> ModelsSpec:
    """The document, if it says itself where the models run. Raises DocumentError."""
    problems = [
        f"models[{position}]: explain looks at no cluster: list 'endpoints' (see /debug/state)"
        for position, model in enumerate(spec.models)
        if model.source is not None
    ]
    if problems:
        raise DocumentError(problems)
    return spec


def _body(source: str) -> bytes:
    return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
