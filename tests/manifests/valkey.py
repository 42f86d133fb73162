"""The Valkey server of components/valkey, on loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis import Redis, RedisError, ResponseError

from extproc.lab.stack.processes import Process, free_port
from extproc.lab.stack.valkey import valkey_binary
from tests.manifests.builds import built

PASSWORD = 'a password with "quotes", $signs and > spaces'


def config_of_valkey() -> Mapping[str, str]:
    """Return the files of the server's ConfigMap."""
    build = built("overlays/shared-state")
    volumes = build.one("Deployment", "extproc-valkey")["spec"]["template"]["spec"]["volumes"]
    name = next(one["configMap"]["name"] for one in volumes if "configMap" in one)
    data: Mapping[str, str] = build.one("ConfigMap", name)["data"]
    return data


class BundledValkey(Process):
    """A server that `start.sh` starts with `valkey.conf`, and with further settings."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        files = config_of_valkey()
        secret = directory / "secret"
        secret.mkdir()
        self.password_file = secret / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        changed = {"bind": "127.0.0.1", "port": str(self.port), **(settings or {})}
        lines = [f"{name} {value}\n" for name, value in changed.items()]
        (directory / "valkey.conf").write_text(files["valkey.conf"] + "".join(lines))
        script = files["start.sh"].replace("/run/extproc-shared-state", str(secret))
        (directory / "start.sh").write_text(script.replace("/etc/valkey", str(directory)))
        (directory / "bin").mkdir()
        (directory / "bin" / "valkey-server").symlink_to(valkey_binary())
        found = {"PATH": f"{directory}/bin:{os.environ['PATH']}"}
        shell = shutil.which("sh")
        assert shell
        super().__init__("valkey", [shell, str(directory / "start.sh")], directory, found)

    def client(self, password: str | None = PASSWORD) -> Redis:
        """Return a client."""
        return Redis(port=self.port, protocol=2, password=password)

    def call(self, *command: Any) -> Any:
        """Return the response to a command. Raises RedisError."""
        with self.client() as client:
            return client.execute_command(*command)

    def refused(self, *command: Any, **credentials: Any) -> str:
        """Return the error with which the server refuses a command; "" if it runs it."""
        with Redis(port=self.port, protocol=2, **credentials) as client:
            try:
                client.execute_command(*command)
            except ResponseError as error:
                return str(error)
        return ""

    async def is_ready(self) -> bool:
        """Return True once the server responds."""
        try:
            return bool(await asyncio.to_thread(self.call, "PING"))
        except (RedisError, OSError):
            return False
