"""The components with which sidecars share their state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError

from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from tests.extent import PATIENCE
from tests.manifests.builds import (
    SHARING,
    Build,
    Object,
    assembled,
    built,
    containers,
    labels_of,
    named,
    selects,
)
from tests.manifests.valkey import BundledValkey, config_of_valkey

OVERLAY = "overlays/shared-state"
VALKEY = "extproc-valkey"
KIB = 1024


def valkey_pod() -> Object:
    """Return the pod template of the server."""
    template: Object = built(OVERLAY).one("Deployment", VALKEY)["spec"]["template"]
    return template


def settings(build: Build) -> dict[str, str]:
    """Return the environment variables that the sidecar reads from a ConfigMap."""
    sidecar = named(containers(build.sidecar_pod()), "extproc")
    (source,) = sidecar["envFrom"]
    data: dict[str, str] = build.one("ConfigMap", source["configMapRef"]["name"])["data"]
    return data


@pytest.mark.parametrize("path", [OVERLAY, *SHARING])
class TestSidecar:
    def test_connects_to_the_service(self, path: str) -> None:
        url = urlsplit(settings(built(path))["EXTPROC_SHARED_STATE"])
        assert url.scheme == "redis"
        service = built(path).one("Service", str(url.hostname))
        assert [port["port"] for port in service["spec"]["ports"]] == [url.port]
        assert selects(service["spec"]["selector"], labels_of(valkey_pod()))

    def test_reads_the_password_from_a_secret_that_it_starts_without(self, path: str) -> None:
        pod = built(path).sidecar_pod()
        file = Path(settings(built(path))["EXTPROC_SHARED_STATE_PASSWORD_FILE"])
        holders = {
            container["name"]: mount["name"]
            for container in containers(pod)
            for mount in container["volumeMounts"]
            if mount["mountPath"] == str(file.parent)
        }
        assert set(holders) == {"extproc"}
        secret = named(pod["spec"]["volumes"], holders["extproc"])["secret"]
        assert secret == {
            "secretName": "extproc-shared-state",
            "optional": True,
            "defaultMode": 0o444,
        }

    def test_may_connect_where_a_policy_restricts_it(self, path: str) -> None:
        labels, server = labels_of(built(path).sidecar_pod()), labels_of(valkey_pod())
        policies = [
            policy["spec"]
            for policy in built(path).of("NetworkPolicy")
            if selects(policy["spec"]["podSelector"]["matchLabels"], labels)
        ]
        assert bool(policies) is not path.startswith("existing-envoy")
        for policy in policies:
            to = [
                port["port"]
                for rule in policy["egress"]
                for peer in rule["to"]
                if selects(peer.get("podSelector", {}).get("matchLabels", {"": ""}), server)
                and "namespaceSelector" not in peer
                for port in rule["ports"]
            ]
            assert to == [6379]

    def test_is_otherwise_the_same(self, path: str) -> None:
        alone = "base" if path == OVERLAY else path.partition(" ")[0]
        before, after = (
            named(containers(built(one).sidecar_pod()), "extproc") for one in (alone, path)
        )
        assert after.pop("envFrom")
        mounts = [m for m in after["volumeMounts"] if m["name"] != "shared-state"]
        assert {**after, "volumeMounts": mounts} == before


class TestServer:
    def test_is_one_that_is_replaced_and_not_doubled(self) -> None:
        spec = built(OVERLAY).one("Deployment", VALKEY)["spec"]
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})

    def test_accepts_only_sidecars_of_its_namespace(self) -> None:
        spec = built(OVERLAY).one("NetworkPolicy", VALKEY)["spec"]
        assert selects(spec["podSelector"]["matchLabels"], labels_of(valkey_pod()))
        assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
        assert "egress" not in spec
        (rule,) = spec["ingress"]
        assert rule["from"] == [{"podSelector": {"matchLabels": {"extproc-sidecar": "true"}}}]

    def test_does_not_start_without_the_secret(self) -> None:
        secrets = [one["secret"] for one in valkey_pod()["spec"]["volumes"] if "secret" in one]
        assert [secret.get("optional", False) for secret in secrets] == [False]

    def test_has_memory_beyond_its_data(self) -> None:
        (container,) = containers(valkey_pod())
        assert container["resources"]["limits"] == {"memory": "1Gi"}
        assert "maxmemory 700mb" in config_of_valkey()["valkey.conf"].splitlines()

    def test_keeps_nothing_on_disk(self) -> None:
        assert {'save ""', "appendonly no"} <= set(config_of_valkey()["valkey.conf"].splitlines())


def test_urls_of_other_servers_replace_the_default() -> None:
    url = "rediss://extproc@redis.example:6380?ssl_ca_certs=/run/extproc-shared-state/ca.crt"
    patch = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "extproc-shared-state"},
        "data": {"EXTPROC_SHARED_STATE": url},
    }
    build = assembled(
        {
            "namespace": "inference",
            "resources": ["manifests/base"],
            "components": ["manifests/components/shared-state"],
            "patches": [{"patch": yaml.safe_dump(patch)}],
        }
    )
    assert settings(build)["EXTPROC_SHARED_STATE"] == url


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BundledValkey]:
    """Run the server with room for little."""
    valkey = BundledValkey(tmp_path, {"maxmemory": "8mb"})
    await valkey.start()
    yield valkey
    await valkey.kill()


class TestRunningServer:
    async def test_has_the_rights_that_a_sidecar_needs(
        self, server: BundledValkey, tmp_path: Path
    ) -> None:
        flags = [
            f"--shared-state={server.url}",
            f"--shared-state-password-file={server.password_file}",
        ]
        sidecar = FileSidecar(
            {"models": [{"name": "m", "endpoints": []}]}, tmp_path, arguments=flags
        )
        try:
            await sidecar.start()

            async def is_connected() -> bool:
                _, text = await sidecar.get("/debug/state")
                state: dict[str, Any] = json.loads(text)["shared_state"]
                return bool(state["connected"])

            await until(is_connected, PATIENCE, "a connection")
        finally:
            await sidecar.kill()

    async def test_refuses_everything_else(self, server: BundledValkey) -> None:
        for command in ("FLUSHALL", "KEYS *", "CONFIG GET *", "DEL a", "ACL LIST", "MONITOR"):
            with pytest.raises(NoPermissionError):
                server.call(*command.split())
        for password in (None, "wrong"):
            with pytest.raises(AuthenticationError):
                server.client(password).ping()

    async def test_evicts_checkpoints_before_it_refuses_batches(
        self, server: BundledValkey
    ) -> None:
        keys = [f"extproc:cache:{number}" for number in range(100)]
        for key in keys:
            server.call("SET", key, bytes(100 * KIB), "EX", 600)
        values = server.call("MGET", *keys)
        kept = [number for number, value in enumerate(values) if value is not None]
        evicted = [number for number, value in enumerate(values) if value is None]
        # The server evicts the oldest of a random sample, so single keys may be out of order.
        assert mean(evicted) < mean(kept)
        added = fill(server)
        assert not any(server.call("MGET", *keys))
        assert len(server.call("XREAD", "STREAMS", "extproc", "0")[0][1]) == added


def fill(server: BundledValkey) -> int:
    """Add entries to the stream until the server refuses one, and return their number."""
    for added in range(1000):
        try:
            server.call("XADD", "extproc", "*", "b", bytes(20 * KIB))
        except OutOfMemoryError:
            return added
    raise AssertionError("the server has no limit")
