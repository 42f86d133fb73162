"""The models document as a file, followed for changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from extproc.adapters.configuration.configuration import Configuration
from extproc.adapters.configuration.document import MAX_BYTES, DocumentError, parse
from extproc.core.schema import ModelsSpec

POLL_SECONDS = 0.5
# A writer that never rests is read all the same.
_PATIENCE_POLLS = 4

Signature = tuple[int, int, int, int, int]


class ModelsFile:
    """Looks at the file twice a second.

    Polling and not notification: it sees a ConfigMap volume's symlink swap, an
    editor's rename, a copy over NFS and a file that comes back, all alike, and
    costs one `stat`.
    """

    def __init__(self, path: Path, configuration: Configuration) -> None:
        self._path = path
        self._configuration = configuration
        self._read: Signature | None = None
        self._said = ""

    def __str__(self) -> str:
        return str(self._path)

    @property
    def trouble(self) -> str:
        """Why the document is not there yet."""
        return "being read"

    async def load(self) -> None:
        """Reads and applies the file. Raises DocumentError or OSError."""
        self._read = self._signature()
        # Off the loop: a large document takes longer to parse than a request may wait.
        await self._configuration.apply(await asyncio.to_thread(self._parse))

    async def watch(self) -> None:
        """Applies each change for ever; whatever the file holds, it does not stop."""
        while True:
            await self._change()
            try:
                await self.load()
            except DocumentError as problem:
                self._configuration.refuse(problem, str(self._path))
            except OSError as problem:
                self._refuse_for_now(problem)
            else:
                self._said = ""

    async def close(self) -> None:
        """Nothing is held open."""

    def _refuse_for_now(self, problem: OSError) -> None:
        """What was not read is read again, though the file may stay as it is; said once."""
        self._read = None
        if str(problem) != self._said:
            self._said = str(problem)
            self._configuration.refuse(problem, str(self._path))

    async def _change(self) -> None:
        """Waits until the file is another one than was read, and at rest."""
        before = self._read
        for_polls = 0
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = self._signature()
            if now == self._read:
                before, for_polls = now, 0
                continue
            for_polls += 1
            if now == before or for_polls >= _PATIENCE_POLLS:
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
