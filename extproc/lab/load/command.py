"""`extproc load`: its arguments, what it prints, and what it complains about."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from extproc.lab.load import figures, limits, parent, target
from extproc.lab.load.bodies import Style
from extproc.lab.load.pool import tls_context
from extproc.lab.load.progress import Display
from extproc.lab.load.shares import Asking, Plan, plan
from extproc.lab.load.target import Target, TargetError
from extproc.lab.measures import charts, published
from extproc.lab.measures.comparison import as_json
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import block, more, summarize
from extproc.lab.workloads import Options, WorkloadError, named, names
from extproc.lab.workloads.workload import Workload

OK = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

_PROBE_SECONDS = 10.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    add = parser.add_argument
    add("--url", required=True, help="of an OpenAI-compatible server: http://HOST:PORT")
    add("--model", required=True, metavar="NAME", help="what requests name as their model")
    add(
        "--workload",
        required=True,
        metavar="NAME",
        help=f"what is asked: {', '.join(names())}",
    )
    add("--trace", type=Path, metavar="FILE", help="the trace that the workload replays")
    add(
        "--pace",
        type=_positive(float),
        default=1.0,
        metavar="FACTOR",
        help="times as many requests per second as the workload has (default: %(default)s)",
    )
    add("--concurrency", type=_positive(int), metavar="N", help="sessions at a time")
    add("--sessions", type=_positive(int), metavar="N", help="no more sessions than these")
    add("--seed", type=int, default=0, metavar="N", help="of all chance (default: %(default)s)")
    add(
        "--real-conversations",
        action="store_true",
        help="kubeai-chat as it is documented: each prompt comes once",
    )
    add(
        "--agreement",
        type=float,
        default=Options.agreement,
        metavar="SHARE",
        help="access-log: how far prompts with one prefix hash agree (default: %(default)s)",
    )
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
        type=_positive(float),
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
        type=_positive(int),
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


def run(parsed: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    try:
        return _run(parsed)
    except (TargetError, WorkloadError) as error:
        return _complain(str(error), BAD_INPUT)
    except parent.LoadError as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted before anything was sent", INTERRUPTED)


def _run(parsed: argparse.Namespace) -> int:
    _check_output(parsed)
    asked_of = _target(parsed)
    workload = _workload(parsed)
    context = tls_context() if asked_of.tls else None
    addresses = target.found(asked_of, min(parsed.timeout, _PROBE_SECONDS), context)
    asking = Asking(
        replace(asked_of, addresses=addresses),
        Style(parsed.model, workload.api, parsed.ignore_eos),
        parsed.timeout,
        parsed.keep_alive,
    )
    work = plan(workload, parsed.seed, parsed.processes, asking)
    _check_limits(work)
    with Display(workload.name, work.phases) as display:
        collected = asyncio.run(parent.run(work, display.begins, display.update))
    if not collected.results:
        return _complain(f"{collected.reason} before anything was measured", INTERRUPTED)
    result = figures.run_of(collected, workload.name, parsed.strategy or asked_of.url)
    _show(result, parsed)
    return _exit_code(result, interrupted=collected.interrupted)


def _target(parsed: argparse.Namespace) -> Target:
    headers = dict(parsed.header)
    key = parsed.api_key or os.environ.get("OPENAI_API_KEY")
    if key and not any(name.lower() == "authorization" for name in headers):
        headers["authorization"] = f"Bearer {key}"
    found = target.parse(parsed.url, headers)
    if parsed.endpoint_header:
        return replace(found, endpoint_headers=(parsed.endpoint_header.lower(),))
    return found


def _workload(parsed: argparse.Namespace) -> Workload:
    options = Options(
        seed=parsed.seed,
        trace=parsed.trace,
        pace=parsed.pace,
        concurrency=parsed.concurrency,
        sessions=parsed.sessions,
        real_conversations=parsed.real_conversations,
        agreement=parsed.agreement,
    )
    return named(parsed.workload, options)


def _check_output(parsed: argparse.Namespace) -> None:
    """Before hours of measuring, and not after them."""
    for path in (parsed.json, parsed.plot):
        if path and str(path) != "-" and not Path(path).absolute().parent.is_dir():
            raise TargetError(f"{path}: there is no such directory")


def _check_limits(work: Plan) -> None:
    streams = max(share.streams for share in work.shares)
    if complaint := limits.complaint(streams, limits.raised()):
        _complain(complaint)


def _show(result: Run, parsed: argparse.Namespace) -> None:
    summary = summarize(result)
    written = json.dumps(as_json(summary), indent=2)
    if parsed.json == "-":
        print(written)
    else:
        print(block(summary), more(summary), figures.client(result), sep="\n")
        table = published.beside(summary, "measured")
        if table is not None:
            Console(width=max(Console().width, 100)).print(table)
    if parsed.json and parsed.json != "-":
        Path(parsed.json).write_text(written + "\n")
    if parsed.plot:
        charts.compare([result], parsed.plot)
    sys.stdout.flush()
    for line in (*figures.failures(result), *figures.warnings(result)):
        _complain(line)


def _exit_code(result: Run, interrupted: bool) -> int:
    if interrupted:
        return INTERRUPTED
    return OK if result.succeeded.any() else FAILED


def _complain(message: str, code: int = OK) -> int:
    print(f"extproc load: {message}", file=sys.stderr)
    return code


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not everywhere
        return os.cpu_count() or 1


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        # Not-a-number and infinity are no use either.
        if not 0 < value < 1e9:
            raise ValueError
        return value

    parse.__name__ = "positive number"
    return parse


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        # The text is not quoted: it may be a secret.
        raise argparse.ArgumentTypeError("not NAME:VALUE")
    return name.strip(), value.strip()
