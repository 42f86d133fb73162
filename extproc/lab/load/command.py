"""`extproc load`: from its arguments to its output and its exit code."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from extproc.commands.console import Parser
from extproc.lab.console import Output
from extproc.lab.load import figures, limits, parent, target
from extproc.lab.load.arguments import arguments
from extproc.lab.load.bodies import BodyOptions
from extproc.lab.load.parent import Collected
from extproc.lab.load.pool import tls_context
from extproc.lab.load.progress import Display
from extproc.lab.load.shares import Plan, RequestOptions, plan
from extproc.lab.load.target import Target, TargetError
from extproc.lab.load.worker_process import LoadError
from extproc.lab.measures import published
from extproc.lab.measures.comparison import as_json
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import block, more, summarize
from extproc.lab.workloads import WorkloadError
from extproc.lab.workloads.arguments import asked_workload, listing

_DESCRIPTION = """\
Sends a workload to an OpenAI-compatible server and measures the latency and
throughput of its clients, with the metrics of vLLM's benchmark_serving.py."""
_EPILOG = "Ctrl-C ends the run and prints the results so far."

OK = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

_PROBE_SECONDS = 10.0


def main(given: Sequence[str]) -> int:
    """Parse the command line and run the command; return the exit code."""
    return run(parser().parse_args(given))


def parser() -> Parser:
    """Return the parser of `extproc load`."""
    found = Parser(
        prog="extproc load",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{listing()}\n\n{_EPILOG}",
        examples={
            "extproc load --url http://127.0.0.1:8080 --model llama --workload kubeai-chat-800": (
                "send a workload through Envoy"
            ),
        },
        exits={
            OK: "a request succeeded",
            FAILED: "no request succeeded",
            BAD_INPUT: "bad arguments, or no server responds",
            INTERRUPTED: "Ctrl-C",
        },
        environment={"OPENAI_API_KEY": "the API key, if --api-key is not given"},
    )
    arguments(found)
    return found


def run(parsed: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    try:
        return _run(parsed)
    except (TargetError, WorkloadError) as error:
        return _complain(str(error), BAD_INPUT)
    except LoadError as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)


def _run(parsed: argparse.Namespace) -> int:
    _check_output(parsed)
    server = _target(parsed)
    workload = asked_workload(parsed)
    if any(session.forks for session in workload.sessions):
        raise WorkloadError(f"the workload {workload.name} has forks, which only 'simulate' sends")
    context = tls_context() if server.tls else None
    addresses = target.reachable_addresses(server, min(parsed.timeout, _PROBE_SECONDS), context)
    options = RequestOptions(
        replace(server, addresses=addresses),
        BodyOptions(parsed.model, workload.api, parsed.ignore_eos),
        parsed.timeout,
        parsed.keep_alive,
    )
    work = plan(workload, parsed.seed, parsed.processes, options)
    _check_limits(work)
    with Display(workload.name, work.phases) as display:
        collected = asyncio.run(parent.run(work, display.begins, display.update))
    if not collected.results:
        return _nothing(collected, server)
    name = parsed.strategy or server.url
    result = figures.run_of(collected, workload.name, name, server.secrets)
    try:
        _show(result, parsed)
    except OSError as error:
        if error.filename is None:
            raise  # an error of stdout, which the caller handles
        return _complain(f"{error.filename}: {error.strerror}", FAILED)
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


def _check_output(parsed: argparse.Namespace) -> None:
    """Check the output files before the run, which may take hours."""
    for path in (parsed.json, parsed.plot, parsed.report):
        if path and str(path) != "-" and not Path(path).absolute().parent.is_dir():
            raise TargetError(f"{path}: there is no such directory")


def _check_limits(work: Plan) -> None:
    streams = max(share.streams for share in work.shares)
    if warning := limits.file_limit_warning(streams, limits.raise_file_limit()):
        _complain(warning)


def _nothing(collected: Collected, server: Target) -> int:
    """Report a run that ended before its measurement began; return the exit code."""
    found = figures.failures_of(collected.warm_up, server.secrets)
    for line in figures.failure_lines(found, "failed"):
        _complain(line)
    code = INTERRUPTED if collected.interrupted else FAILED
    return _complain(f"{collected.reason}; nothing was measured", code)


def _show(result: Run, parsed: argparse.Namespace) -> None:
    summary = summarize(result)
    written = json.dumps(as_json(summary), indent=2)
    if parsed.json == "-":
        print(written)
    else:
        print(block(summary), more(summary), figures.client(result), sep="\n")
        table = published.compare(summary, "measured") if _is_whole(result, parsed) else None
        if table is not None:
            Output().print(table)
    sys.stdout.flush()
    for line in (*figures.failures(result), *figures.warnings(result)):
        _complain(line)
    if parsed.json and parsed.json != "-":
        Path(parsed.json).write_text(written + "\n")
    if parsed.plot:
        # This import takes half a second, and most runs do not need it.
        from extproc.lab.measures import charts

        charts.compare([result], parsed.plot)
    if parsed.report:
        from extproc.lab.measures.report import Report

        source = f"extproc load, workload {result.workload} sent to {_host(parsed.url)}"
        Report(f"Load test with {result.workload}", source, [result]).write(parsed.report)


def _host(url: str) -> str:
    """Return the host and port of a URL, without credentials."""
    return urlsplit(url if "://" in url else f"http://{url}").netloc.rpartition("@")[2]


def _is_whole(result: Run, parsed: argparse.Namespace) -> bool:
    """Return True if the run sent the unchanged workload, which published runs compare with."""
    changed = parsed.sessions or parsed.concurrency or parsed.pace != 1 or parsed.real_conversations
    changed = changed or parsed.burstiness or parsed.at_once
    return not changed and "interrupted" not in result.notes


def _exit_code(result: Run, interrupted: bool) -> int:
    if interrupted:
        return INTERRUPTED
    return OK if result.succeeded.any() else FAILED


def _complain(message: str, code: int = OK) -> int:
    print(f"extproc load: {message}", file=sys.stderr)
    return code
