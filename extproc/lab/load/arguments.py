"""The arguments of `extproc load`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from extproc.lab.load import target
from extproc.lab.workloads.arguments import add_workload, positive


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    add = parser.add_argument
    add("--url", required=True, help="of an OpenAI-compatible server: http://HOST:PORT")
    add("--model", required=True, metavar="NAME", help="what requests name as their model")
    add_workload(parser, required=True)
    _add_asking(parser)
    _add_output(parser)


def _add_asking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is asked")
    add = group.add_argument
    add(
        "-H",
        "--header",
        action="append",
        default=[],
        type=_header,
        metavar="NAME:VALUE",
        help="a header of each request; may be repeated",
    )
    add(
        "--api-key",
        metavar="KEY",
        help="the same as -H 'Authorization: Bearer KEY' (default: $OPENAI_API_KEY, which no "
        "list of processes shows)",
    )
    add(
        "--timeout",
        type=positive(float),
        default=600.0,
        metavar="SECONDS",
        help="a request has failed after so long without a byte (default: %(default)g)",
    )
    add(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="leave out the field ignore_eos, which servers other than vLLM may refuse; answers "
        "may be shorter then",
    )
    add(
        "--no-keep-alive",
        dest="keep_alive",
        action="store_false",
        help="a new connection for each request, as benchmark_serving.py does: a Kubernetes "
        "Service chooses a pod by connection",
    )
    add(
        "--endpoint-header",
        metavar="NAME",
        help="the header of answers that says which endpoint they are from (default: "
        f"{' or '.join(target.ENDPOINT_HEADERS)})",
    )
    add(
        "--processes",
        type=positive(int),
        default=_cpus(),
        metavar="N",
        help="that share the work (default: one per CPU, here %(default)s)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is printed")
    add = group.add_argument
    add(
        "--strategy",
        metavar="NAME",
        help="what routes behind the URL: the run's name, and the published row beside it",
    )
    add("--json", metavar="FILE|-", help="write the figures as JSON (-: to stdout, nothing else)")
    add("--plot", type=Path, metavar="FILE.png", help="draw charts")


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not everywhere
        return os.cpu_count() or 1


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        # The text is not quoted: it may be a secret.
        raise argparse.ArgumentTypeError("not NAME:VALUE")
    return name.strip(), value.strip()
