"""Log lines to a file that may be slow, or full, or a pipe that nobody reads.

Who logs never waits: a thread does. It takes as many lines as there are in one write, so
that it keeps up with an event loop that seldom lets go of the interpreter.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep

MAX_LINES = 2_000
"""That wait to be written: half a megabyte of them, and a second of `debug` under load."""

FLUSH_SECONDS = 1.0
"""That the end of the process waits for what was not written yet."""

_BATCH_LINES = 200
_POLL_SECONDS = 0.005
_END = b""


class LogWriter(logging.Handler):
    """Writes to a file descriptor. What finds no room, or cannot be written, is counted."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        # Not a Queue: its lock is not reentrant, and the collector of garbage may log any time.
        self._lines = SimpleQueue[bytes]()
        self._accepted = self._done = 0
        self._overflowed = self._failed = 0
        # A write that never ends must not keep the process: the thread is a daemon, and takes
        # no lock that the interpreter asks for at its end, as that of sys.stderr.
        Thread(target=self._run, name="log-writer", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines so far that were not, or not wholly, written."""
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
        """Waits until all is written, but not for long."""
        until = monotonic() + FLUSH_SECONDS
        while self._done < self._accepted and monotonic() < until:
            sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Takes no more; what was taken is still written."""
        self._lines.put(_END)
        super().close()

    def _run(self) -> None:
        while _END not in (batch := self._batch()):
            self._write(batch)
        self._write(batch)

    def _batch(self) -> list[bytes]:
        """All that waits, once there is something."""
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
