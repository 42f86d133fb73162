"""The five steps of the README, run exactly as written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest
import yaml

from extproc.lab.stack.envoy import Envoy, envoy_binary
from extproc.lab.stack.processes import free_port, until
from tests.e2e.forked import ForkedFleet
from tests.envoy.texts import APP, JSON_LOG, configuration, listener
from tests.extent import PATIENCE

README = Path(__file__).parents[2] / "README.md"
HEADING = "## Add it to an Envoy you already run"


def steps() -> list[tuple[str, str]]:
    """Return the language and the text of each fenced block of the section."""
    section = README.read_text().split(HEADING)[1].split("\n## ")[0]
    found = re.findall(r"^   ```(\w+)\n(.*?)^   ```", section, re.DOTALL | re.MULTILINE)
    return [(language, re.sub(r"^   ", "", text, flags=re.MULTILINE)) for language, text in found]


@pytest.fixture
async def cleanup() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def stop(pid_file: Path) -> None:
    if pid_file.exists():
        with suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


async def test_the_five_steps_lead_to_a_routed_request(
    tmp_path: Path, cleanup: AsyncExitStack
) -> None:
    replicas = ForkedFleet(2, tmp_path, ("--time-scale", "50"))
    cleanup.push_async_callback(replicas.kill)
    await replicas.start()
    (tmp_path / "your.yaml").write_text(configuration([listener(APP, name="llm", log=JSON_LOG)]))
    admin, sidecar = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    first, second = replicas.addresses
    (install, document, serve, into, check, request, explain) = steps()
    assert install == ("sh", "pip install '.[uvloop]'\n")
    assert document[0] == "yaml"
    models = document[1].replace("10.0.3.7:8000", first).replace("10.0.3.8:8000", second)
    (tmp_path / "models.yaml").write_text(models)

    def run(block: tuple[str, str]) -> str:
        """Run a shell block of the README with other addresses and return its output."""
        text = block[1].replace("10.0.3.7:8000", first)
        text = text.replace("--into your.yaml", f"--into your.yaml --sidecar {sidecar}")
        programs = f"{Path(sys.executable).parent}:{Path(envoy_binary()).parent}"
        done = subprocess.run(
            ["sh", "-ec", text.replace("serve --models models.yaml &", f"{SERVE} & {KEEP_PID}")],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "EXTPROC_LISTEN": sidecar,
                "EXTPROC_ADMIN": admin,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        return done.stdout

    cleanup.callback(stop, tmp_path / "sidecar.pid")
    run(serve)
    assert "+" in run(into)
    assert run(check).strip() in ("", "configuration 'your.yaml' OK")

    async def ready() -> bool:
        with suppress(aiohttp.ClientError, OSError):
            async with aiohttp.ClientSession() as http, http.get(f"http://{admin}/readyz") as got:
                return got.status == 200
        return False

    await until(ready, PATIENCE, "the sidecar to be ready")
    config = yaml.safe_load((tmp_path / "your.yaml").read_text())
    config["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    envoy = Envoy(config, tmp_path)
    cleanup.push_async_callback(envoy.kill)
    await envoy.start()
    port = str(envoy.ports["llm"])
    response = json.loads(run(("sh", request[1].replace(":8080/", f":{port}/"))))
    assert response["choices"], response
    await until(lambda: len(envoy.access_log()) >= 1, PATIENCE, "a line in the access log")
    (line,) = envoy.access_log()
    assert line["endpoint"] in replicas.addresses
    assert line["reason"] == "prefix"
    assert line["endpoint"] in run(explain)


SERVE = "serve --models models.yaml >sidecar.out 2>&1"
KEEP_PID = "echo $! >sidecar.pid"
