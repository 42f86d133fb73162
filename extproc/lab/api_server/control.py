"""The control port of the stand-in API server, with which tests change its state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from extproc.lab.api_server.errors import ApiError, bad_request
from extproc.lab.api_server.faults import REASONS
from extproc.lab.api_server.front import MAX_BODY, ApiFront
from extproc.lab.api_server.objects import Scope
from extproc.lab.api_server.rbac import Roles
from extproc.lab.api_server.resources import by_kind, by_plural
from extproc.lab.api_server.verbs import type_of
from extproc.lab.api_server.watch import Ending


class Port(Protocol):
    """The API's listening socket."""

    http2: bool
    """True to offer HTTP/2 with TLS, from the next time that it listens."""

    async def open(self) -> None:
        """Start to listen; do nothing if the port is open."""

    async def close(self) -> None:
        """Stop listening and reset all connections."""

    def go_away(self) -> None:
        """Announce the end of all HTTP/2 connections."""


class Control:
    """The handlers of the control port, which works even if a fault blocks the API port."""

    def __init__(self, front: ApiFront, port: Port) -> None:
        self._front = front
        self._port = port

    def app(self) -> web.Application:
        """Return the application of the control port."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors])
        app.router.add_post("/stand-in/apply", self._apply)
        app.router.add_post("/stand-in/delete", self._delete)
        app.router.add_get("/stand-in/objects", self._objects)
        app.router.add_get("/stand-in/requests", self._requests)
        app.router.add_delete("/stand-in/requests", self._forget_requests)
        app.router.add_get("/stand-in/watches", self._watches)
        app.router.add_post("/stand-in/drop-watches", self._drop_watches)
        app.router.add_post("/stand-in/compact", self._compact)
        app.router.add_post("/stand-in/rbac", self._rbac)
        app.router.add_post("/stand-in/faults", self._faults)
        return app

    async def _apply(self, request: web.Request) -> web.Response:
        given = await _body(request)
        for body in given if isinstance(given, list) else [given]:
            resource = by_kind(body.get("kind"))
            metadata = body.get("metadata") or {}
            if bool(metadata.get("namespace")) != resource.namespaced:
                raise bad_request(f"{resource.kind} {metadata.get('name')}: wrong namespace")
            self._front.store.apply(resource, {**body, **type_of(resource, body)})
        return _done()

    async def _delete(self, request: web.Request) -> web.Response:
        given = await _body(request)
        resource = by_kind(given["kind"])
        self._front.store.delete(resource, given.get("namespace", ""), given["name"])
        return _done()

    async def _objects(self, request: web.Request) -> web.Response:
        resource = by_plural(request.query.get("resource", ""))
        scope = Scope(resource, request.query.get("namespace", ""))
        return web.json_response([stored.body for stored in self._front.store.list(scope)])

    async def _requests(self, _: web.Request) -> web.Response:
        return web.json_response(list(self._front.requests))

    async def _forget_requests(self, _: web.Request) -> web.Response:
        self._front.requests.clear()
        return _done()

    async def _watches(self, _: web.Request) -> web.Response:
        return web.json_response({"open": len(self._front.watches)})

    async def _drop_watches(self, request: web.Request) -> web.Response:
        abort = (await _body(request)).get("abort", False)
        for watch in list(self._front.watches):
            watch.end(Ending.ABORT if abort else Ending.NORMAL)
        return _done()

    async def _compact(self, _: web.Request) -> web.Response:
        self._front.store.compact()
        return _done()

    async def _rbac(self, request: web.Request) -> web.Response:
        roles = await _body(request)
        self._front.roles = None if roles is None else Roles(roles)
        return _done()

    async def _faults(self, request: web.Request) -> web.Response:
        """Change faults; a wrong name or value changes none of them."""
        given = await _body(request)
        for name, value in given.items():
            if name not in _SWITCHES or not _SWITCHES[name](value):
                raise bad_request(f"no such fault: {name}: {value!r}")
        for name, value in given.items():
            await self._switch(name, value)
        return _done()

    async def _switch(self, name: str, value: Any) -> None:
        match name, value:
            case "listening", True:
                await self._port.open()
            case "listening", False:
                await self._port.close()
            case "frozen", True:
                self._front.faults.thawed.clear()
            case "frozen", False:
                self._front.faults.thawed.set()
            case "silent_watches", True:
                for watch in self._front.watches:
                    watch.silent = True
            case "goaway", True:
                self._port.go_away()
            case "http2", _:
                self._port.http2 = value
            case "token", _:
                self._front.token = value
            case _:
                setattr(self._front.faults, name, value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


_SWITCHES: dict[str, Callable[[Any], bool]] = {
    "listening": _is_bool,
    "frozen": _is_bool,
    "http2": _is_bool,
    "goaway": lambda value: value is True,
    "silent_watches": lambda value: value is True,
    "forbidden": lambda value: isinstance(value, list),
    "failing": lambda value: value == 0 or value in REASONS,
    "list_delay": lambda value: isinstance(value, int | float) and value >= 0,
    "capacity": lambda value: isinstance(value, int) and value >= 0,
    "garbage": _is_bool,
    "token": lambda value: isinstance(value, str),
}
"""The faults, and a check of the value of each."""


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Any]
) -> web.StreamResponse:
    """Answer 400 with a message to an invalid control request."""
    try:
        response: web.StreamResponse = await handler(request)
    except ApiError as error:
        return web.json_response(error.document(), status=error.code)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return web.json_response(bad_request(repr(error)).document(), status=400)
    return response


async def _body(request: web.Request) -> Any:
    return json.loads(await request.read() or b"{}")


def _done() -> web.Response:
    return web.json_response({})
