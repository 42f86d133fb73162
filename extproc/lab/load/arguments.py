"""The command-line arguments of `extproc load`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from extproc.lab.load import target
from extproc.lab.workloads.arguments import add_workload, positive


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("--url", required=True, help="URL of an OpenAI-compatible server: http://HOST:PORT")
    add("--model", required=True, metavar="NAME", help="model name in the requests")
    add_workload(parser, required=True)
    group = parser.add_argument_group("requests")
    _add_headers(group)
    _add_connections(group)
    _add_output(parser)


def _add_headers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-H",
        "--header",
        action="append",
        default=[],
        type=_header,
        metavar="NAME:VALUE",
        help="add a header to each request; may be repeated",
    )
    add(
        "--api-key",
        metavar="KEY",
        help="the same as -H 'Authorization: Bearer KEY' (default: $OPENAI_API_KEY, which does "
        "not appear in process lists)",
    )
    add(
        "--endpoint-header",
        metavar="NAME",
        help="response header that names the endpoint (default: "
        f"{' or '.join(target.ENDPOINT_HEADERS)})",
    )
    add(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="omit the field ignore_eos, which servers other than vLLM may refuse; responses may "
        "then be shorter",
    )


def _add_connections(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--timeout",
        type=positive(float),
        default=600.0,
        metavar="SECONDS",
        help="a request fails after this time without a received byte (default: %(default)g)",
    )
    add(
        "--no-keep-alive",
        dest="keep_alive",
        action="store_false",
        help="open a connection for each request, as benchmark_serving.py does: a Kubernetes "
        "Service chooses a pod for each connection",
    )
    add(
        "--processes",
        type=positive(int),
        default=_cpus(),
        metavar="N",
        help="processes that send the requests (default: one per CPU, here %(default)s)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    add = group.add_argument
    add(
        "--strategy",
        metavar="NAME",
        help="strategy of the router behind the URL: names the run and selects the published row "
        "to compare it with",
    )
    add("--json", metavar="FILE|-", help="write the results as JSON (-: to stdout, and only them)")
    add("--plot", type=Path, metavar="FILE.png", help="draw charts")
    add("--report", type=Path, metavar="FILE.html", help="write charts and figures as a web page")


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # the call is specific to Linux
        return os.cpu_count() or 1


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        # The message does not quote the text, which may be a secret.
        raise argparse.ArgumentTypeError("not NAME:VALUE")
    return name.strip(), value.strip()
