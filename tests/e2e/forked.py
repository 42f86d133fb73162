"""Stand-ins and sidecars as forks of a process that has already imported their modules.

Importing the sidecar's modules takes ten times the CPU time of starting it. Each fork is a new
process and shares nothing with the processes of other tests.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from extproc import cli
from extproc.commands import serve
from extproc.lab.api_server import __main__ as stand_in_api_server
from extproc.lab.api_server.process import StandInApiServer
from extproc.lab.stack.processes import Process
from extproc.lab.stack.sidecar import FileSidecar, SidecarProcess
from extproc.lab.stack.stand_in_fleet import StandInFleet
from extproc.lab.stand_ins import vllm as stand_in_vllm

Main = Callable[[Sequence[str]], int]

_PYTHONPATH = os.environ.get("PYTHONPATH")
_CONTEXT = get_context("forkserver")
# The sidecar imports the clients of Kubernetes and DNS only when it needs them.
_ON_DEMAND = ["extproc.adapters.kubernetes.http_api", "extproc.adapters.dns.client", "uvloop"]
_CONTEXT.set_forkserver_preload(
    [
        *(stand_in_vllm.__name__, stand_in_api_server.__name__, serve.__name__),
        *(*_ON_DEMAND, __name__, "tests.e2e.frozen"),
    ]
)


class _Forked(Process):
    """A forked program that behaves like `python -m MODULE ARGUMENTS`."""

    @staticmethod
    @abstractmethod
    def main(arguments: Sequence[str]) -> int:
        """Run the program and return its exit code."""

    def spawn(self) -> None:
        _, _, _, *arguments = self._arguments
        for output in (self.stdout, self.stderr):
            output.touch()
        made = _CONTEXT.Process(
            target=_run,
            args=(self.main, arguments, self._environment, self.stdout, self.stderr),
            daemon=True,
        )
        made.start()
        self._process = _Child(made)  # type: ignore[assignment]


class ForkedFleet(StandInFleet, _Forked):
    """Stand-in replicas."""

    main = staticmethod(stand_in_vllm.main)


class ForkedApiServer(StandInApiServer, _Forked):
    """A stand-in API server."""

    main = staticmethod(stand_in_api_server.main)


class ForkedSidecar(SidecarProcess, _Forked):
    """A sidecar, forked unless it needs other modules than this process."""

    main = staticmethod(cli.main)

    def spawn(self) -> None:
        # A fork keeps the modules that were already imported, even if PYTHONPATH has changed.
        same_modules = self._environment.get("PYTHONPATH") == _PYTHONPATH
        spawn = _Forked.spawn if same_modules else Process.spawn
        spawn(self)


class ForkedFileSidecar(ForkedSidecar, FileSidecar):
    """A sidecar whose models document is a file."""


class _Child:
    """A forked process with the part of Popen's interface that `Process` uses."""

    def __init__(self, made: BaseProcess) -> None:
        assert made.pid is not None
        self.pid = made.pid
        self._made = made

    def poll(self) -> int | None:
        return self._made.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    main: Main,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stdout: Path,
    stderr: Path,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for path, descriptor in ((stdout, 1), (stderr, 2)):
        with path.open("ab") as opened:
            os.dup2(opened.fileno(), descriptor)
    try:
        sys.exit(main(arguments))
    finally:
        logging.shutdown()  # writes the last lines; a fork runs no handlers of atexit
