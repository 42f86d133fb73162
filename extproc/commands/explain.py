"""`extproc explain`: shows how the sidecar would route a request, and why."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from extproc.adapters.configuration.document import DocumentError, parse
from extproc.adapters.configuration.host_names import resolved
from extproc.adapters.dns.resolver import Resolver
from extproc.commands.console import OK, REFUSED, Parser, complain, file_path, flag, optional
from extproc.commands.values import byte_count, header, load, name_server
from extproc.core.schema import ModelsSpec, NamedEndpoints, endpoint_address
from extproc.explain import explain, shown

_SHOWN = 20
"""Most endpoints that an error message lists."""


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="show how the sidecar would route a request, and why",
        description="Runs a request through the steps of 'extproc serve': model, adapter, prefix, "
        "hash, candidates with their loads, bound, pick. It assumes the recommended Envoy "
        "configuration, which sends bodies of up to 8 MiB whole, and the first 64 KiB of longer "
        "ones. It sends nothing to an endpoint.",
        examples={
            "extproc explain --models models.yaml --body request.json": "explain a request",
            "extproc explain --models models.yaml --inflight 10.0.3.7:8000=9 < request.json": (
                "assume that an endpoint is busy"
            ),
            "extproc explain --models models.yaml --json < request.json | jq .endpoint": (
                "print the chosen endpoint"
            ),
        },
        exits={
            0: "the request is routed",
            1: "the request is refused",
            2: "bad arguments, or a bad models document",
        },
    )
    flag(parser, "--models", None, file_path, "FILE", "the models document")
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
        help="read only the first BYTES of the body, as an Envoy with other limits would send it "
        "(default: all of a body of up to 8 MiB, 64 KiB of a longer one)",
    )
    parser.add_argument(
        "--inflight",
        action="append",
        default=[],
        type=load,
        metavar="IP:PORT=N",
        help="assume N requests in flight on an endpoint; may be repeated (default: none)",
    )
    optional(
        parser,
        "--dns-server",
        name_server,
        "IP[:PORT]",
        "name server for host names in 'endpoints' (default: those of /etc/resolv.conf)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        spec = _static(parse(arguments.models.read_bytes()))
        spec = asyncio.run(resolved(spec, Resolver(arguments.dns_server).resolve))
        inflight = _loads(spec, arguments.inflight)
        body = _body(arguments.body)
    except DocumentError as error:
        return complain(*(f"{arguments.models}: {problem}" for problem in error.problems))
    except _UnknownEndpoint as error:
        return complain(f"extproc explain: {error}")
    except OSError as error:
        return complain(f"{error.filename or 'stdin'}: {error.strerror}")
    explanation = explain(
        spec,
        shown(body) if arguments.head is None else body[: arguments.head],
        length=len(body),
        path=arguments.path,
        headers=dict(arguments.header),
        inflight=inflight,
    )
    if arguments.json:
        print(json.dumps(explanation.as_dict()))
    else:
        print(*explanation.lines(), sep="\n")
    return OK if explanation.error is None else REFUSED


class _UnknownEndpoint(Exception):
    """An error for a load of an address that is not an endpoint of the document."""


def _loads(spec: ModelsSpec, given: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the loads by canonical address. Raises _UnknownEndpoint."""
    known = sorted({address for model in spec.models for address in model.endpoints or ()})
    loads = {_canonical(address): count for address, count in given}
    unknown = next((address for address in loads if address not in known), None)
    if unknown is not None:
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        listed = f"{', '.join(known[:_SHOWN])}{more}" if known else "none"
        raise _UnknownEndpoint(f"--inflight {unknown}: no such endpoint; the document has {listed}")
    return loads


def _canonical(address: str) -> str:
    try:
        return endpoint_address(address)
    except ValueError:
        return address


def _static(spec: ModelsSpec) -> ModelsSpec:
    """Return a document whose endpoints are all static. Raises DocumentError for others."""
    problems = [
        f"models[{position}]: explain does not read Kubernetes: list 'endpoints' instead (see "
        "/debug/state)"
        for position, model in enumerate(spec.models)
        if model.source is not None and not isinstance(model.source, NamedEndpoints)
    ]
    if problems:
        raise DocumentError(problems)
    return spec


def _body(source: str) -> bytes:
    return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
