"""A real `extproc serve` process on loopback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.lab.stack.processes import Process, free_port


def compiled_environment() -> Mapping[str, str]:
    """Return the environment variables with which a process runs the package that `make compiled`
    built.

    $EXTPROC_COMPILED is the directory of that package. If it is not set, the result is empty.
    """
    directory = os.environ.get("EXTPROC_COMPILED")
    # Without PYTHONSAFEPATH, `python -m` prefers the package in the current directory.
    return {"PYTHONPATH": directory, "PYTHONSAFEPATH": "1"} if directory else {}


class SidecarProcess(Process):
    """A real `extproc serve`, which can be killed and spawned again on the same ports.

    `configured` holds the flags that name the source of its models.
    """

    def __init__(
        self,
        configured: Sequence[str],
        directory: Path,
        *,
        listen: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self.listen = listen or f"127.0.0.1:{free_port()}"
        admin = f"127.0.0.1:{free_port()}"
        self.admin = f"http://{admin}"
        command = [sys.executable, "-m", "extproc", "serve", *configured]
        command += ["--listen", self.listen, "--admin", admin, *arguments]
        super().__init__("sidecar", command, directory, compiled_environment())

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status and body of a path on the admin port."""
        async with aiohttp.ClientSession() as session, session.get(self.admin + path) as response:
            return response.status, await response.text()

    async def state(self) -> dict[str, Any]:
        """Return the models of `/debug/state`, by name."""
        _, text = await self.get("/debug/state")
        models: dict[str, Any] = json.loads(text)["models"]
        return models

    async def inflight(self) -> dict[str, int]:
        """Return the in-flight requests of each address, over all models; skip idle endpoints."""
        endpoints = [e for model in (await self.state()).values() for e in model["endpoints"]]
        return {e["address"]: e["inflight"] for e in endpoints if e["inflight"]}

    async def is_ready(self) -> bool:
        """Return True once `/readyz` answers 200."""
        try:
            status, _ = await self.get("/readyz")
        except (aiohttp.ClientError, OSError):
            return False
        return status == 200


class FileSidecar(SidecarProcess):
    """A sidecar that reads its models document from a file."""

    def __init__(
        self,
        models: Mapping[str, Any],
        directory: Path,
        *,
        listen: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self.models = directory / "models.yaml"
        self.write_models(models)
        configured = ["--models", str(self.models)]
        super().__init__(configured, directory, listen=listen, arguments=arguments)

    def write_models(self, models: Mapping[str, Any]) -> None:
        """Replace the models document atomically, as a ConfigMap volume does."""
        draft = self.models.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(models))
        draft.replace(self.models)
