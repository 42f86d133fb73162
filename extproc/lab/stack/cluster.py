"""A Kubernetes cluster for tests: a stand-in API server, and the objects to put into it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from extproc.lab.stack.processes import Process

Json = dict[str, Any]


class StandInApiServer(Process):
    """`extproc.lab.stand_ins.api_server` as a process, and its control port as coroutines.

    Those work whatever is wrong with the API port. They raise RuntimeError where the control
    port refuses what they ask for.
    """

    def __init__(self, directory: Path, arguments: Sequence[str] = ()) -> None:
        self.kubeconfig = directory / "kubeconfig.yaml"
        command = [sys.executable, "-m", "extproc.lab.stand_ins.api_server", "--announce"]
        command += ["--kubeconfig", str(self.kubeconfig), *arguments]
        super().__init__("stand_in_api_server", command, directory)
        self.url = ""
        self._control = ""

    def spawn(self) -> None:
        """Starts it, empty; on other ports, if it was not told which."""
        self.stdout.unlink(missing_ok=True)
        super().spawn()

    async def is_ready(self) -> bool:
        """Whether it has announced its ports."""
        line = self.stdout.read_text()
        if not line.endswith("\n"):
            return False
        ports = json.loads(line)
        self.url = f"http://127.0.0.1:{ports['port']}"
        self._control = f"http://127.0.0.1:{ports['control_port']}"
        return True

    async def apply(self, *objects: Json) -> None:
        """Creates or replaces objects; one that is the same already stays as it is."""
        await self._ask("POST", "apply", list(objects))

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Deletes an object, at once."""
        await self._ask("POST", "delete", {"kind": kind, "namespace": namespace, "name": name})

    async def objects(self, plural: str, namespace: str = "") -> list[Json]:
        """All objects of a resource, in one namespace or in all."""
        query = {"resource": plural, "namespace": namespace}
        found: list[Json] = await self._ask("GET", "objects", query=query)
        return found

    async def faults(self, **switches: Any) -> None:
        """Sets some of the faults; the others stay as they are.

        listening=False: connections are refused and those there are reset; True: as before.
        frozen=True: connections are accepted and nothing is ever sent; False: all goes on.
        silent_watches=True: the watches now open never say anything again, and never end.
        forbidden=["endpointslices"]: 403 for these resources.
        failing=503: so does every request; also 500 and 429; 0: none.
        list_delay=2.5: lists take so long.
        garbage=True: the next line that any watch sends is broken.
        """
        await self._ask("POST", "faults", switches)

    async def compact(self) -> None:
        """Has all versions but the present one expire; open watches go on."""
        await self._ask("POST", "compact")

    async def drop_watches(self, abort: bool = False) -> None:
        """Ends all open watches: normally, or by breaking off within a line."""
        await self._ask("POST", "drop-watches", {"abort": abort})

    async def open_watches(self) -> int:
        """How many watches there are, silent ones too."""
        count: int = (await self._ask("GET", "watches"))["open"]
        return count

    async def requests(self) -> list[Json]:
        """The requests so far: verb, path, group, resource, namespace, name, query, status, at.

        The name is that of a field selector too. A status of 0: not answered yet. `at` is of
        time.monotonic(), which all processes share.
        """
        found: list[Json] = await self._ask("GET", "requests")
        return found

    async def forget_requests(self) -> None:
        """Starts the log of requests anew."""
        await self._ask("DELETE", "requests")

    async def rbac(self, roles: Sequence[Json] | None) -> None:
        """Allows only what Role objects, each with its namespace, allow; None: everything."""
        await self._ask("POST", "rbac", roles)

    async def _ask(
        self, method: str, path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, f"{self._control}/stand-in/{path}", data=json.dumps(body), params=query
            ) as response,
        ):
            answer = await response.json()
            if response.status != 200:
                raise RuntimeError(f"{path}: {answer['message']}")
            return answer


def endpoint_slice(
    service: str,
    namespace: str,
    name: str,
    addresses: Sequence[tuple[str, str, Mapping[str, bool]]],
    port: int = 8000,
    port_name: str = "http",
    address_type: str = "IPv4",
) -> Json:
    """A slice of a Service, from (address, name of the pod, conditions) of each endpoint.

    All of its endpoints have one port, so replicas on loopback need a slice each.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": address_type,
        "endpoints": [
            {
                "addresses": [address],
                "conditions": dict(conditions),
                "targetRef": {"kind": "Pod", "name": pod_name, "namespace": namespace},
            }
            for address, pod_name, conditions in addresses
        ],
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"}],
    }


def config_map(namespace: str, name: str, data: Mapping[str, str]) -> Json:
    """A ConfigMap."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def pod(
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    ip: str,
    ready: bool = True,
    deleting: bool = False,
) -> Json:
    """A Pod that runs."""
    metadata: Json = {"name": name, "namespace": namespace, "labels": dict(labels)}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        metadata["deletionGracePeriodSeconds"] = 30
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
    }
    containers = [{"name": "vllm", "image": "vllm/vllm-openai"}]
    spec = {"containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def inference_pool(
    namespace: str, name: str, selector: Mapping[str, str], ports: Sequence[int]
) -> Json:
    """An InferencePool of v1."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": dict(selector)},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": f"{name}-epp", "port": {"number": 9002}},
        },
    }
