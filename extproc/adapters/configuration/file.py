"""Watches the models document in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from extproc.adapters.configuration.configuration import Configuration
from extproc.adapters.configuration.document import MAX_BYTES, DocumentError, parse
from extproc.core.schema import ModelsSpec

POLL_SECONDS = 0.5
# A file that keeps changing is read after this many polls.
_PATIENCE_POLLS = 4

Signature = tuple[int, int, int, int, int]


class ModelsFile:
    """Polls the file twice a second.

    Unlike notifications, polling detects every kind of change: the symlink swap of a ConfigMap
    volume, an editor's rename, a copy over NFS and a file that reappears. It costs one `stat`.
    """

    def __init__(self, path: Path, configuration: Configuration) -> None:
        self._path = path
        self._configuration = configuration
        self._read: Signature | None = None
        self._reported = ""

    def __str__(self) -> str:
        return str(self._path)

    @property
    def trouble(self) -> str:
        """Reason why there is no document yet."""
        return "being read"

    @property
    def age(self) -> float:
        """Always 0, because the file is read whenever it changes."""
        return 0.0

    async def load(self) -> None:
        """Read and apply the file. Raises DocumentError or OSError."""
        self._read = self._signature()
        # In a thread: a large document takes longer to parse than a request may wait.
        await self._configuration.apply(await asyncio.to_thread(self._parse))

    async def watch(self) -> None:
        """Apply each change until cancelled; invalid documents are refused."""
        while True:
            await self._change()
            try:
                await self.load()
            except DocumentError as problem:
                self._configuration.refuse(problem, str(self._path))
            except OSError as problem:
                self._refuse_unreadable(problem)
            else:
                self._reported = ""

    async def close(self) -> None:
        """Do nothing: no file is kept open."""

    def _refuse_unreadable(self, problem: OSError) -> None:
        """Report an unreadable file once; it is read again even if it does not change."""
        self._read = None
        if str(problem) != self._reported:
            self._reported = str(problem)
            self._configuration.refuse(problem, str(self._path))

    async def _change(self) -> None:
        """Wait until the file differs from the one last read, and has stopped changing."""
        before = self._read
        polls = 0
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = self._signature()
            if now == self._read:
                before, polls = now, 0
                continue
            polls += 1
            if now == before or polls >= _PATIENCE_POLLS:
                return
            before = now

    def _signature(self) -> Signature | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size

    def _parse(self) -> ModelsSpec:
        with self._path.open("rb") as file:
            return parse(file.read(MAX_BYTES + 1))
