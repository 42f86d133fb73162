"""The stand-in API server as a child process, steered through its control port."""

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
    """The program `extproc.lab.api_server`, with a coroutine for each control request.

    The control port works even if a fault blocks the API port. The coroutines raise RuntimeError
    if the control port refuses a request.
    """

    def __init__(self, directory: Path, arguments: Sequence[str] = ()) -> None:
        self.kubeconfig = directory / "kubeconfig.yaml"
        command = [sys.executable, "-m", "extproc.lab.api_server", "--announce"]
        command += ["--kubeconfig", str(self.kubeconfig), *arguments]
        super().__init__("stand_in_api_server", command, directory)
        self._scheme = "https" if "--certificate" in arguments else "http"
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
        self.url = f"{self._scheme}://127.0.0.1:{ports['port']}"
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

        listening=False: refuse new connections and reset open ones; True: accept connections, with
            the current content of the certificate file.
        frozen=True: accept connections but send nothing; False: send again.
        silent_watches=True: watches that are open now send nothing more, and never end.
        forbidden=["endpointslices"]: answer 403 for these resources.
        failing=503: answer every request with this status (also 500 and 429); 0: no failures.
        list_delay=2.5: delay each list by 2.5 seconds.
        capacity=4: refuse further requests while four wait for their response; 0: refuse none.
        garbage=True: corrupt the next line that any watch sends.
        goaway=True: announce the end of each HTTP/2 connection, which ends after its streams.
        http2=False: offer only HTTP/1.1 from the next `listening=True`; True: HTTP/2 with TLS.
        token="new": accept only this bearer token from now on.
        """
        await self._ask("POST", "faults", switches)

    async def reset(self) -> None:
        """End all faults, allow everything and empty the log of requests."""
        await self.faults(
            listening=True,
            frozen=False,
            forbidden=[],
            failing=0,
            list_delay=0,
            capacity=0,
            garbage=False,
        )
        await self.rbac(None)
        await self.forget_requests()

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
        """Return the requests so far: verb, path, group, resource, namespace, name, query, queued,
        client_port, status, at.

        The name may come from a field selector. `queued` is the number of requests that waited for
        their response, this one included. Requests on one connection have the same `client_port`.
        Status 0 means that the response is still due. `at` is a time of time.monotonic(), a clock
        that all processes share.
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
