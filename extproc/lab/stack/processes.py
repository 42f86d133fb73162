"""Child processes of the laboratory: their output goes to files, and they are stopped by pid."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

START_SECONDS = 60


class NotReadyError(RuntimeError):
    """Raised if a process did not start, ended at once or was not ready in time."""


class Process:
    """One child process, whose stdout and stderr go to two files of a directory."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = list(arguments)
        self._environment = {**os.environ, **(environment or {})}
        self.name = name
        self.stdout = directory / f"{name}.out"
        self.stderr = directory / f"{name}.err"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running process."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def spawn(self) -> None:
        """Start the process, or start it again after its end. Output is appended."""
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment,
            )

    async def start(self) -> None:
        """Spawn the process and wait until it is ready. Raises NotReadyError with its stderr."""
        try:
            self.spawn()
        except OSError as error:
            raise NotReadyError(f"{self.name} did not start: {error}") from None
        try:
            await until(self._runs_and_is_ready, START_SECONDS, f"{self.name} to be ready")
        except TimeoutError as error:
            raise NotReadyError(f"{error}: {self.error_output()}") from None

    async def is_ready(self) -> bool:
        """Return True if the process can do its work; `start` polls this."""
        return True

    async def _runs_and_is_ready(self) -> bool:
        if self.returncode() is not None:
            raise NotReadyError(f"{self.name} did not start: {self.error_output()}")
        return await self.is_ready()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def returncode(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return None if self._process is None else self._process.poll()

    async def wait(self, seconds: float = 10) -> int:
        """Wait for the end of the process and return its exit code. Raises TimeoutError."""
        await until(lambda: self.returncode() is not None, seconds, f"{self.name} to exit")
        code = self.returncode()
        assert code is not None
        return code

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        if self._process is not None and self.returncode() is None:
            self._process.kill()
            await self.wait()

    async def stop(self, seconds: float = 10) -> None:
        """Send SIGTERM, then SIGKILL if the process still runs after `seconds`."""
        if self._process is None or self.returncode() is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            await self.wait(seconds)
        except TimeoutError:
            await self.kill()

    def cpu_seconds(self) -> float:
        """Return the CPU time (user and system) of the process's live threads."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def resident_bytes(self) -> int:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def error_output(self) -> str:
        """Return the end of the process's stderr, for messages."""
        return self.stderr.read_text(errors="replace")[-2000:] if self.stderr.exists() else ""


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float, what: str) -> None:
    """Wait for a condition. Raises TimeoutError, which names `what`.

    It is checked every 20 ms, and then less and less often, but at least every 100 ms.
    """
    began = time.monotonic()
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        waited = time.monotonic() - began
        if waited > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        await asyncio.sleep(min(max(0.02, waited / 10), 0.1))


def free_port() -> int:
    """Return a free loopback port, reserved for a minute.

    The port is left in TIME_WAIT. The kernel does not assign such a port to a process that asks
    for any free one, but a server that sets SO_REUSEADDR can listen on it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            # The side that closes first gets the TIME_WAIT state.
            server.accept()[0].close()
            client.recv(1)
    return port
