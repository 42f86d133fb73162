"""The admin port: metrics, health, readiness, state and the status page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from extproc.adapters.observability.state import ModelState, model_states
from extproc.adapters.observability.status import StatusReport
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.fleet import Fleet
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.routing.catalog import Catalog
from extproc.edge.status.page import Explain, StatusPage

Ready = Callable[[], str | None]
"""Returns why the sidecar is not ready, or None if it is."""


def admin_app(
    fleet: Fleet,
    catalog: Callable[[], Catalog],
    telemetry: Telemetry,
    why_not_ready: Ready,
    shared_state: Callable[[], Mapping[str, object]] | None = None,
    flow: FlowControl | None = None,
    explain: Explain | None = None,
) -> web.Application:
    """Return the application with the admin port's routes.

    The status page needs `explain`; without it there is no page.
    """

    def models(read: str | None = None) -> dict[str, ModelState]:
        return model_states(fleet, catalog(), flow, with_fleet=shared_state is not None, read=read)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=telemetry.exposition(),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why_not = why_not_ready()
        return web.Response(text=f"{why_not or 'ok'}\n", status=503 if why_not else 200)

    async def state(_: web.Request) -> web.Response:
        shared = {} if shared_state is None else {"shared_state": shared_state()}
        configuration = telemetry.configuration.state
        document = {"models": models(), "configuration": configuration, **shared}
        return web.json_response(document)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/debug/state", state)
    if explain is not None:
        report = StatusReport(fleet, catalog, telemetry, models, why_not_ready, shared_state)
        StatusPage(report, explain).add_routes(app.router)
    return app
