"""Child processes of the laboratory: started with their output in files, stopped by pid."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

START_SECONDS = 20


class NotReadyError(RuntimeError):
    """A process that did not start, ended at once or was not ready in time."""


class Process:
    """One child process; its stdout and stderr go to files beside each other."""

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
        """Of the running process."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def spawn(self) -> None:
        """Starts the process, again if it has ended; output is appended."""
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment,
            )

    async def start(self) -> None:
        """Spawns it and waits until it is ready. Raises NotReadyError with its complaint."""
        try:
            self.spawn()
        except OSError as error:
            raise NotReadyError(f"{self.name} did not start: {error}") from None
        try:
            await until(self._runs_and_is_ready, START_SECONDS, f"{self.name} to be ready")
        except TimeoutError as error:
            raise NotReadyError(f"{error}: {self.complaint()}") from None

    async def is_ready(self) -> bool:
        """Whether it does what it was started for; looked at until it is."""
        return True

    async def _runs_and_is_ready(self) -> bool:
        if self.returncode() is not None:
            raise NotReadyError(f"{self.name} did not start: {self.complaint()}")
        return await self.is_ready()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def returncode(self) -> int | None:
        """The exit code, or None while the process runs."""
        return None if self._process is None else self._process.poll()

    async def wait(self, seconds: float = 10) -> int:
        """The exit code. Raises TimeoutError."""
        await until(lambda: self.returncode() is not None, seconds, f"{self.name} to exit")
        code = self.returncode()
        assert code is not None
        return code

    async def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        if self._process is not None and self.returncode() is None:
            self._process.kill()
            await self.wait()

    async def stop(self, seconds: float = 10) -> None:
        """SIGTERM, and SIGKILL to one that does not heed it; nothing if it has ended."""
        if self._process is None or self.returncode() is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            await self.wait(seconds)
        except TimeoutError:
            await self.kill()

    def cpu_seconds(self) -> float:
        """CPU time, user and system, used so far by the threads of the process that live."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def resident_bytes(self) -> int:
        """Memory in use."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def complaint(self) -> str:
        """The end of what it wrote to stderr, for messages."""
        return self.stderr.read_text(errors="replace")[-2000:] if self.stderr.exists() else ""


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float, what: str) -> None:
    """Waits for a condition, looking often. Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        await asyncio.sleep(0.02)


def free_port() -> int:
    """A loopback port that nobody listens on, and that nobody else is given for a minute.

    It is left in TIME_WAIT: the kernel does not choose such a port for those who ask for any,
    and servers can listen on it all the same, for they set SO_REUSEADDR.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            # TIME_WAIT is at the side that closes first.
            server.accept()[0].close()
            client.recv(1)
    return port
