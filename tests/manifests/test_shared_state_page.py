"""Commands and names in docs/several-sidecars.md, as far as tests can check them here."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest
import yaml

from extproc.adapters.shared_state.checkpoints import KEPT_SECONDS, ROUND_SECONDS
from extproc.adapters.shared_state.link import IDLE_INTERVAL_SECONDS, INTERVAL_SECONDS
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.adapters.shared_state.stream import BatchStream
from tests.manifests.builds import ROOT, Object, assembled, built, containers, named
from tests.manifests.valkey import PASSWORD, BundledValkey

PAGE = (ROOT / "docs" / "several-sidecars.md").read_text()
SIDECAR = {"username": "extproc", "password": "PASSWORD"}


def kustomizations() -> list[Object]:
    """Return the pieces of kustomizations on the page."""
    found = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [yaml.safe_load(text) for text in found]


def test_applied_directories_build() -> None:
    (path,) = re.findall(r"kubectl apply -k manifests/([\w/-]+)", PAGE)
    assert built(path).objects


def test_components_for_another_overlay_build() -> None:
    build = assembled(kustomizations()[0])
    assert build.has("Deployment", "extproc-valkey")
    assert named(containers(build.sidecar_pod()), "extproc")["envFrom"]


def test_patches_for_another_server_build() -> None:
    _, url, policy = kustomizations()
    build = assembled(
        {
            "namespace": "inference",
            "resources": ["manifests/base"],
            "components": ["manifests/components/shared-state"],
            "patches": [*url["patches"], *policy["patches"]],
        }
    )
    (used,) = [
        thing["data"]["EXTPROC_SHARED_STATE"]
        for thing in build.of("ConfigMap")
        if "EXTPROC_SHARED_STATE" in thing["data"]
    ]
    SharedStateServer(used, "extproc").check()
    assert "10.20.0.0/16" in str(build.one("NetworkPolicy")["spec"]["egress"])


def test_times_are_those_of_the_code() -> None:
    for text in (
        f"Every {INTERVAL_SECONDS * 1000:g} ms, a sidecar writes",
        f"it does so every {IDLE_INTERVAL_SECONDS * 1000:g} ms",
        f"expires after {KEPT_SECONDS / 60:g} minutes",
        f"each at least every {ROUND_SECONDS} seconds",
    ):
        assert text in " ".join(PAGE.split())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BundledValkey]:
    """Run a server that has the user of the page's ACL line."""
    valkey = BundledValkey(tmp_path, {"user admin": "on nopass ~* +@all"})
    await valkey.start()
    (line,) = re.findall(r"^ *ACL SETUSER (.*)$", PAGE, re.MULTILINE)
    admin = {"username": "admin", "password": PASSWORD}
    assert not valkey.refused("ACL", "SETUSER", *line.split(), **admin)
    yield valkey
    await valkey.kill()


class TestAclLine:
    async def test_allows_what_a_sidecar_does(self, server: BundledValkey) -> None:
        url = f"redis://extproc:PASSWORD@127.0.0.1:{server.port}"
        connection = SharedStateServer(url, "extproc").connection()
        await connection.connect()  # type: ignore[no-untyped-call]
        stream = BatchStream(connection, "extproc", "us", monotonic)
        await stream.begin()
        await stream.exchange(b"batch")
        key = "extproc:cache:10.0.0.1:8000"
        await stream.call([("SET", key, b"checkpoint", "EX", 600), ("MGET", key)])
        await connection.disconnect()

    async def test_allows_nothing_else(self, server: BundledValkey) -> None:
        commands = ("FLUSHALL", "DEL extproc", "GET other", "SET other x", "XTRIM other MAXLEN 0")
        for command in (*commands, "KEYS *", "CONFIG GET *", "ACL LIST", "SELECT 1"):
            assert "ermissions" in server.refused(*command.split(), **SIDECAR), command
