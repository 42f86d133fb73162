"""Writes log lines to a file that may be slow or full, or to a pipe without a reader.

Logging never blocks a request: a thread writes. It joins all waiting lines in one write, so that
it keeps up with an event loop that rarely releases the interpreter.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep

MAX_LINES = 2_000
"""Lines that may wait: half a megabyte, or a second of level `debug` under load."""

FLUSH_SECONDS = 1.0
"""Time for which the end of the process waits for the last lines."""

_BATCH_LINES = 200
_POLL_SECONDS = 0.005
_END = b""


class LogWriter(logging.Handler):
    """Writes to a file descriptor, and counts the lines that it drops."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        # Not a Queue: its lock is not reentrant, and the garbage collector may log at any time.
        self._lines = SimpleQueue[bytes]()
        self._accepted = self._done = 0
        self._overflowed = self._failed = 0
        # A write that blocks forever must not keep the process alive. So the thread is a daemon,
        # and takes no lock that the interpreter needs at its end, such as that of sys.stderr.
        Thread(target=self._run, name="log-writer", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines so far that were not written, or only in part."""
        return self._overflowed + self._failed

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= MAX_LINES:
            self._overflowed += 1
            return
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        self._accepted += 1
        self._lines.put(line.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Wait until all lines are written, at most FLUSH_SECONDS."""
        until = monotonic() + FLUSH_SECONDS
        while self._done < self._accepted and monotonic() < until:
            sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Accept no more lines; accepted lines are still written."""
        self._lines.put(_END)
        super().close()

    def _run(self) -> None:
        while _END not in (batch := self._batch()):
            self._write(batch)
        self._write(batch)

    def _batch(self) -> list[bytes]:
        """Return all waiting lines; wait for the first."""
        batch = [self._lines.get()]
        with suppress(Empty):
            while len(batch) < _BATCH_LINES:
                batch.append(self._lines.get_nowait())
        return batch

    def _write(self, batch: list[bytes]) -> None:
        rest = b"".join(batch)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._failed += len(batch)
        self._done += len(batch)
