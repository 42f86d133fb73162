"""`extproc envoy-config`: prints, extends and checks Envoy's configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from extproc.adapters.configuration.document import DocumentError, parse
from extproc.commands.console import BAD_INPUT, OK, Parser, complain, file_path
from extproc.commands.values import address, host_port, path_prefix
from extproc.envoy.files import diff, read, replace
from extproc.envoy.lint import Severity, lint
from extproc.envoy.merge import merge
from extproc.envoy.print import recommended
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.tree import YamlError


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "envoy-config",
        help="print, extend or check Envoy's configuration",
        description="Prints the recommended Envoy configuration. With --into, it writes the pieces "
        "of that configuration into your own file and prints the difference. Pieces that your file "
        "has stay as they are, so a second run changes nothing. With --check, it prints a line "
        "for each setting that loses requests or decisions: FILE: line N: SEVERITY: where: "
        "problem: cost; fix: change.",
        examples={
            "extproc envoy-config --endpoint 10.0.3.7:8000 > envoy.yaml": "print a configuration",
            "extproc envoy-config --into envoy.yaml --dry-run": "show what would change in a file",
            "extproc envoy-config --check envoy.yaml": "check a file",
        },
        exits={
            0: "done; --check may have found warnings and hints",
            2: "nothing could be written, or --check found an error",
        },
    )
    _add_modes(parser)
    _add_addresses(parser)
    _add_targets(parser)
    parser.set_defaults(run=run)


def _add_modes(parser: Parser) -> None:
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--into", type=file_path, metavar="FILE", help="write the pieces into this file"
    )
    mode.add_argument("--check", type=file_path, metavar="FILE", help="check this file")
    parser.add_argument(
        "--dry-run", action="store_true", help="with --into: print the difference, write nothing"
    )


def _add_addresses(parser: Parser) -> None:
    addresses = parser.add_argument_group("addresses")
    addresses.add_argument(
        "--endpoint",
        action="append",
        default=[],
        type=host_port,
        metavar="HOST:PORT",
        help="a model server of the fallback, which serves requests while the sidecar is down; may "
        "be repeated",
    )
    addresses.add_argument(
        "--models",
        type=file_path,
        metavar="FILE",
        help="the models document that lists the model servers, instead of --endpoint",
    )
    addresses.add_argument(
        "--sidecar",
        type=address,
        metavar="ADDR",
        help="the address of 'extproc serve', HOST:PORT or unix:PATH (default: as in the file, "
        "else 127.0.0.1:9002)",
    )
    addresses.add_argument(
        "--listen",
        type=host_port,
        metavar="HOST:PORT",
        help="the address on which the printed configuration listens (default: 0.0.0.0:8080)",
    )


def _add_targets(parser: Parser) -> None:
    targets = parser.add_argument_group("targets of --into")
    targets.add_argument(
        "--prefix",
        action="append",
        default=[],
        type=path_prefix,
        metavar="PATH",
        help="serve the LLM paths below this path, for example /team/v1/chat/completions; Envoy "
        "removes it before the servers; may be repeated, and / is the root (default: /)",
    )
    targets.add_argument(
        "--listener",
        action="append",
        default=[],
        metavar="NAME",
        help="the listener; may be repeated (default: all listeners that share the virtual host)",
    )
    targets.add_argument(
        "--virtual-host",
        default="",
        metavar="NAME",
        help="the virtual host (default: the only one that forwards requests)",
    )


def run(arguments: argparse.Namespace) -> int:
    misplaced = _misplaced(arguments)
    if misplaced:
        return complain(f"extproc envoy-config: {misplaced} (see extproc envoy-config --help)")
    try:
        if arguments.check is not None:
            return _check(arguments.check)
        endpoints = [*arguments.endpoint, *_endpoints_of(arguments.models)]
        if arguments.into is None:
            print(recommended(endpoints, arguments.sidecar or "", arguments.listen or ""), end="")
            return OK
        return _into(arguments, endpoints)
    except DocumentError as error:
        return complain(*(f"{arguments.models}: {problem}" for problem in error.problems))
    except (ConfigurationError, YamlError) as error:
        return complain(f"{arguments.into or arguments.check}: {error}")
    except OSError as error:
        if error.filename is None:
            raise  # an error of stdout, which the command line handles
        return complain(f"{error.filename}: {error.strerror}")


def _misplaced(arguments: argparse.Namespace) -> str:
    """Return an error about flags that cannot be combined, or ""."""
    of_into = {
        "--dry-run": arguments.dry_run,
        "--prefix": arguments.prefix,
        "--listener": arguments.listener,
        "--virtual-host": arguments.virtual_host,
    }
    given = [flag for flag, value in of_into.items() if value]
    if given and arguments.into is None:
        return f"{given[0]} needs --into FILE"
    if arguments.listen and arguments.into is not None:
        return "--listen cannot be used with --into, which changes no listener's address"
    if arguments.check is not None and (arguments.endpoint or arguments.models):
        return "--check cannot be used with --endpoint or --models"
    return ""


def _endpoints_of(models: Path | None) -> list[str]:
    """Return the static endpoints of a models document. Raises DocumentError, OSError."""
    if models is None:
        return []
    spec = parse(models.read_bytes())
    served = [model for model in spec.models if model.split is None]
    found = list(dict.fromkeys(str(one) for model in served for one in model.endpoints or ()))
    if not found:
        raise DocumentError(
            [
                "no static endpoints: give the servers with --endpoint HOST:PORT, for example the "
                "DNS name of a headless Service"
            ]
        )
    if len(served) > 1:
        _note(
            f"{models}: {len(served)} models share one fallback. While the sidecar is down, a "
            "request may reach a server that does not have its model: give each model a route and "
            "a fallback of its own"
        )
    return found


def _into(arguments: argparse.Namespace, endpoints: Sequence[str]) -> int:
    path: Path = arguments.into
    before = read(path)
    merged = merge(
        before,
        endpoints=endpoints,
        sidecar=arguments.sidecar or "",
        prefixes=arguments.prefix,
        listeners=arguments.listener,
        virtual_host=arguments.virtual_host,
    )
    if merged.text == before:
        _note(f"{path}: not changed, because it has all the pieces")
        return OK
    for note in merged.notes:
        _note(f"{path}: {note}")
    print(diff(path, before, merged.text), end="", flush=True)
    if arguments.dry_run:
        _note(f"{path}: not written (--dry-run)")
        return OK
    replace(path, merged.text)
    _note(f"{path}: written. Next: envoy --mode validate -c {path}")
    return OK


def _check(path: Path) -> int:
    findings = lint(read(path))
    for finding in findings:
        print(f"{path}: {finding}")
    return BAD_INPUT if any(one.severity is Severity.ERROR for one in findings) else OK


def _note(text: str) -> None:
    print(text, file=sys.stderr)
