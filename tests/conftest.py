"""The division of the whole suite over its processes.

No test asserts a duration, so any two tests may run at the same time. Tests often wait for
processes and timers, so there are three processes for each core, but at most eight. More would use
more CPU time, because each process collects all tests.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from extproc.lab.pages.browser import NO_BROWSER
from tests.extent import extent
from tests.faults.report import show

if TYPE_CHECKING:
    from xdist.remote import Producer

# Tests of one module share fixtures and imports, so one process runs them. These share nothing:
# each test starts its own processes and mostly waits for them. Any process runs the next one, and
# tests that compute run at the same time.
WAITING = (
    "tests/adapters/shared_state/test_outages.py",
    "tests/e2e/",
    "tests/faults/",
    "tests/lab/bench/",
    "tests/lab/demo/",
    "tests/lab/load/",
)

# Modules of these directories share something that takes long to make, or to import.
MADE_ONCE = (
    "tests/browser/",
    "tests/clients/",
    "tests/e2e/test_shared_state.py",
    "tests/faults/test_shared_state.py",
    "tests/lab/api_server/",
    "tests/lab/stand_ins/",
    "tests/manifests/",
    "tests/style/",
)

# The longest groups and tests start first, so that no process is left with one at the end.
LONGEST_FIRST = (
    "tests/faults/test_api_server.py::test_watch_silent",
    "tests/packaging/",
    "tests/browser/",
    "tests/clients/",
    "tests/test_app.py",
)
LONG_COMPUTING = (*("tests/lab/", "tests/manifests/"), "tests/core/conversation/", "tests/envoy/")
"""Computing groups that start before the other computing groups."""
MOST_PROCESSES = 8

# Hypothesis measures time with these on, and a busy machine would fail a test.
settings.register_profile(
    "untimed",
    max_examples=extent(10, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Accept SIGINT. A shell's background job ignores it, and so would processes of the tests."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection: they are millions of lasting objects."""
    gc.disable()
    try:
        _compile_a_share()
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _compile_a_share() -> None:
    """Import this process's share of the test modules, which compiles those without bytecode.

    All processes collect all modules in the same order. On a fresh clone, each of them would
    compile each module.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    root = Path(__file__).parents[1]
    modules = sorted(root.glob("tests/**/test_*.py"))
    for module in modules[number::processes] if processes else ():
        # pytest reports what an import raises when it collects the module.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(module.relative_to(root).with_suffix("").parts))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return 0, which means this process alone, for tests that are named or that print."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not whole or config.option.capture == "no":
        return 0
    return min(3 * (os.cpu_count() or 1), MOST_PROCESSES)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling:
    """Return our scheduler: the loadgroup of xdist changes test ids, which pytest 9.2 refuses."""
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler that keeps the tests of a group in one process, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the outcome of each fault, and why the browser's tests were skipped."""
    show(terminalreporter)
    skipped = terminalreporter.stats.get("skipped", [])
    if any(NO_BROWSER in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"tests/browser skipped: {NO_BROWSER}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest tests to the front, and mix groups that wait with groups that compute."""
    scopes = dict.fromkeys(_scope(item.nodeid) for item in items)
    waiting = [scope for scope in scopes if scope.startswith(WAITING)]
    computing = [scope for scope in scopes if not scope.startswith(WAITING)]
    computing.sort(key=lambda scope: not scope.startswith(LONG_COMPUTING))
    places = {
        scope: place / len(kind)
        for kind in (waiting, computing)
        for place, scope in enumerate(kind)
    }
    items.sort(key=lambda item: (_rank(item.nodeid), places[_scope(item.nodeid)]))


def _rank(nodeid: str) -> int:
    """Return the rank of a test among the longest."""
    ranks = (rank for rank, one in enumerate(LONGEST_FIRST) if nodeid.startswith(one))
    return next(ranks, len(LONGEST_FIRST))


def _scope(nodeid: str) -> str:
    """Return the group of a test: one that is made once, else itself if it waits, or its module."""
    module = nodeid.partition("::")[0]
    alone = nodeid if nodeid.startswith(WAITING) else module
    return next((shared for shared in MADE_ONCE if module.startswith(shared)), alone)
