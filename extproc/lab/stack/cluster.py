"""A Kubernetes cluster for tests: a stand-in API server and its objects."""

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
    """The program `extproc.lab.stand_ins.api_server`, with a coroutine for each control request.

    The control port works even if a fault blocks the API port. The coroutines raise RuntimeError
    if the control port refuses a request.
    """

    def __init__(self, directory: Path, arguments: Sequence[str] = ()) -> None:
        self.kubeconfig = directory / "kubeconfig.yaml"
        command = [sys.executable, "-m", "extproc.lab.stand_ins.api_server", "--announce"]
        command += ["--kubeconfig", str(self.kubeconfig), *arguments]
        super().__init__("stand_in_api_server", command, directory)
        self.url = ""
        self._control = ""

    def spawn(self) -> None:
        """Start the server without objects, on new ports unless the arguments name them."""
        self.stdout.unlink(missing_ok=True)
        super().spawn()

    async def is_ready(self) -> bool:
        """Return True once the server has announced its ports."""
        line = self.stdout.read_text()
        if not line.endswith("\n"):
            return False
        ports = json.loads(line)
        self.url = f"http://127.0.0.1:{ports['port']}"
        self._control = f"http://127.0.0.1:{ports['control_port']}"
        return True

    async def apply(self, *objects: Json) -> None:
        """Create or replace objects; an identical object keeps its version."""
        await self._ask("POST", "apply", list(objects))

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object at once, without a grace period."""
        await self._ask("POST", "delete", {"kind": kind, "namespace": namespace, "name": name})

    async def objects(self, plural: str, namespace: str = "") -> list[Json]:
        """Return all objects of a resource, in one namespace or in all."""
        query = {"resource": plural, "namespace": namespace}
        found: list[Json] = await self._ask("GET", "objects", query=query)
        return found

    async def faults(self, **switches: Any) -> None:
        """Change some of the faults; the others stay as they are.

        listening=False: refuse new connections and reset open ones; True: accept connections.
        frozen=True: accept connections but send nothing; False: send again.
        silent_watches=True: watches that are open now send nothing more, and never end.
        forbidden=["endpointslices"]: answer 403 for these resources.
        failing=503: answer every request with this status (also 500 and 429); 0: no failures.
        list_delay=2.5: delay each list by so many seconds.
        garbage=True: corrupt the next line that any watch sends.
        """
        await self._ask("POST", "faults", switches)

    async def compact(self) -> None:
        """Expire all versions but the current one; open watches stay open."""
        await self._ask("POST", "compact")

    async def drop_watches(self, abort: bool = False) -> None:
        """End all open watches: normally, or with `abort` in the middle of a line."""
        await self._ask("POST", "drop-watches", {"abort": abort})

    async def open_watches(self) -> int:
        """Return the number of open watches, silent ones included."""
        count: int = (await self._ask("GET", "watches"))["open"]
        return count

    async def requests(self) -> list[Json]:
        """Return the requests so far: verb, path, group, resource, namespace, name, query, status,
        at.

        The name may come from a field selector. Status 0 means that the response is still due.
        `at` is a time of time.monotonic(), a clock that all processes share.
        """
        found: list[Json] = await self._ask("GET", "requests")
        return found

    async def forget_requests(self) -> None:
        """Empty the log of requests."""
        await self._ask("DELETE", "requests")

    async def rbac(self, roles: Sequence[Json] | None) -> None:
        """Allow only what these Role objects allow in their namespaces; None allows everything."""
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
    """Return an EndpointSlice; `addresses` has (address, pod name, conditions) of each endpoint.

    The endpoints of a slice share one port, so each replica on loopback needs a slice of its own.
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
    """Return a ConfigMap."""
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
    """Return a running Pod."""
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
    """Return an InferencePool of version v1."""
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
