"""How the whole suite is divided over two processes.

One runs, one after the other, the tests that are sensitive to timing: stacks of real processes
under load, with deadlines, or of which one is frozen. The other runs everything else meanwhile;
whoever is done first helps.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.extent import extent
from tests.faults.report import show

if TYPE_CHECKING:
    from xdist.remote import Producer

SENSITIVE_TO_TIMING = (
    "tests/e2e/test_drain.py",
    "tests/e2e/test_ejection.py",
    "tests/e2e/test_endpoint_picker.py::TestASidecarThatFails",
    "tests/e2e/test_endpoint_picker.py::TestInFlightTruth",
    "tests/e2e/test_inflight_truth.py",
    "tests/e2e/test_kubernetes_",
    "tests/e2e/test_load_reports.py",
    "tests/e2e/test_reload.py",
    "tests/e2e/test_signals.py",
    "tests/e2e/test_simulated_time.py",
    "tests/e2e/test_strategies.py",
    "tests/faults/test_api_server.py",
    "tests/faults/test_configuration.py",
    "tests/faults/test_discovery.py",
    "tests/faults/test_endpoints.py",
    "tests/faults/test_limits.py",
    "tests/faults/test_metrics.py::test_bad_metrics",
    "tests/faults/test_rolling_update.py",
    "tests/faults/test_sidecar.py",
    "tests/faults/test_soak.py",
    "tests/faults/test_spoofing.py::test_header_spoof_frozen",
    "tests/faults/test_truth.py",
    "tests/lab/load/test_load.py",
    "tests/lab/test_programs.py",
    "tests/lab/stand_ins/test_api_server.py",
    "tests/manifests/test_gateway.py",
)

# Their tests share what takes long to make, so no process shall make it a second time.
MADE_ONCE = (
    "tests/clients/",
    "tests/lab/simulation/test_published_lora.py",
    "tests/lab/stand_ins/test_sdks.py",
    "tests/lab/workloads/test_codegen.py",
    "tests/lab/workloads/test_kubeai_chat.py",
    "tests/lab/workloads/test_threads.py",
    "tests/manifests/",
    "tests/packaging/",
)

# Hypothesis measures time with these on, and a busy machine would fail a test.
settings.register_profile(
    "untimed",
    max_examples=extent(25, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would what tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two for the whole suite; none, but this process, for tests that were named or that print."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return 2 if whole and config.option.capture != "no" and (os.cpu_count() or 1) > 1 else 0


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling:
    """Not loadgroup, which would have to change the tests' ids, and with pytest 9.2 cannot."""
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one scope go to one process together, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What faults came to."""
    show(terminalreporter)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first."""
    items.sort(key=lambda item: _scope(item.nodeid) != "timing")


def _scope(nodeid: str) -> str:
    if nodeid.startswith(SENSITIVE_TO_TIMING):
        return "timing"
    return next((shared for shared in MADE_ONCE if nodeid.startswith(shared)), nodeid)
