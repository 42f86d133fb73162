"""Command line of the tables.

All pages take an hour on two cores. Without docs/prefix-caches.md they take minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from extproc.lab.input_error import InputError
from extproc.lab.tables import flow_control, out_of_sample, prefix_caches
from extproc.lab.tables.cells import simulate_cells
from extproc.lab.tables.page import CELLS, write
from extproc.lab.workloads.arguments import positive

PAGES = ("benchmarks", "flow-control", "prefix-caches")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages below the current directory."""
    asked = _parser().parse_args(arguments)
    docs = Path("docs")
    try:
        _check(asked, docs)
    except InputError as error:
        print(f"extproc.lab.tables: {error}", file=sys.stderr)
        return 2
    if asked.random:
        print(out_of_sample.update(docs, asked.random, asked.only, missing=asked.missing))
        print(f"written: docs/{out_of_sample.PAGE}")
        return 0
    wanted = asked.page or PAGES
    if "benchmarks" in wanted:
        write(simulate_cells(CELLS), docs)
        print("written: docs/benchmarks.md")
    if "flow-control" in wanted:
        flow_control.write(docs)
        print(f"written: docs/{flow_control.PAGE}")
    if "prefix-caches" in wanted:
        prefix_caches.update(docs, asked.trace, asked.only, missing=asked.missing)
        print(f"written: docs/{prefix_caches.PAGE}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="extproc.lab.tables")
    parser.add_argument("page", nargs="*", help=f"one of {', '.join(PAGES)} (default: all)")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="Mooncake's conversation trace; without it, the trace's rows keep their figures",
    )
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="WORD",
        help="prefix-caches: run only trials with a WORD in their key, such as 'saas |', "
        "'| PrefixCache' or 'seed 0'; without a WORD run none. Others keep their figures",
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="prefix-caches: run only trials without figures. After a change of a strategy, run "
        "its own trials again with --only",
    )
    parser.add_argument(
        "--random",
        type=positive(int),
        metavar="N",
        help="write docs/out-of-sample.md with N randomly drawn trials instead of the pages; takes "
        "--only and --missing too",
    )
    return parser


def _check(asked: argparse.Namespace, docs: Path) -> None:
    for page in asked.page:
        if page not in PAGES:
            raise InputError(f"unknown page {page!r}: known pages are {', '.join(PAGES)}")
    if asked.random and (asked.page or asked.trace):
        raise InputError("--random takes neither a page nor a trace")
    if not docs.is_dir():
        raise InputError("the current directory has no directory docs")
    if asked.trace is not None and not asked.trace.is_file():
        raise InputError(f"{asked.trace}: no such file")
    for option in ("only", "missing"):
        given = getattr(asked, option) not in (None, False)
        if given and asked.page != ["prefix-caches"] and not asked.random:
            raise InputError(f"--{option} works with the page prefix-caches only")


if __name__ == "__main__":
    sys.exit(main())
