"""The composition root: builds everything, starts it, and drains it."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from extproc.adapters.configuration import Configuration
from extproc.adapters.logs import fields
from extproc.adapters.models_document import DocumentError
from extproc.adapters.models_file import ModelsFile
from extproc.adapters.telemetry import Telemetry
from extproc.core.ledger import Ledger
from extproc.core.router import Router
from extproc.edge.admin import AdminServer, admin_app
from extproc.edge.grpc_server import GrpcServer
from extproc.edge.service import ExternalProcessor

log = logging.getLogger("extproc")


@dataclass(frozen=True)
class Settings:
    """What `extproc serve` is told."""

    listen: str
    """Where Envoy connects: HOST:PORT or unix:PATH."""

    admin: str
    """Where metrics and health are served: HOST:PORT or unix:PATH."""

    models: Path
    """The models document."""

    grace: float
    """Seconds that running streams are given after SIGTERM."""


class StartError(Exception):
    """The sidecar cannot start; the message is one line for the operator."""


async def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Raises StartError."""
    sidecar = Sidecar(settings)
    await sidecar.start()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await stopping.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Whoever asks twice does not want to wait for the drain.
        loop.remove_signal_handler(number)
    await sidecar.drain()


class Sidecar:
    """All parts of a running sidecar."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        rng = Random()
        self._router = Router(Ledger())
        self._telemetry = Telemetry(self._router)
        configuration = Configuration(self._router, self._telemetry, rng)
        self._models = ModelsFile(settings.models, configuration)
        self._grpc = GrpcServer(ExternalProcessor(self._router, self._telemetry, rng))
        self._admin = AdminServer(admin_app(self._router, self._telemetry, self._why_not_ready))
        self._following: asyncio.Task[None] | None = None
        self._draining = False

    async def start(self) -> None:
        """Loads the configuration, then opens the ports. Raises StartError."""
        try:
            await self._models.load()
            await self._admin.start(self._settings.admin)
            await self._grpc.start(self._settings.listen)
        except DocumentError as error:
            raise StartError(_first_problem(self._settings.models, error)) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise StartError(f"{where}{error.strerror or error}") from None
        self._following = asyncio.create_task(self._models.follow())
        await self._grpc.set_serving(True)
        log.info("serving", extra=fields(listen=self._settings.listen, admin=self._settings.admin))

    async def drain(self) -> None:
        """Unready first, then no new streams, then waits for those that run."""
        self._draining = True
        await self._grpc.set_serving(False)
        log.info("draining", extra=fields(streams=self._streams(), grace=self._settings.grace))
        await self._grpc.stop(self._settings.grace)
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        await self._admin.stop()
        log.info("stopped")

    def _streams(self) -> int:
        return sum(self._router.ledger.loads.values())

    def _why_not_ready(self) -> str | None:
        if self._draining:
            return "draining"
        if self._following is None:
            return "starting"
        # It never ends by itself; if it did, changes would no longer arrive.
        return "the models file is no longer followed" if self._following.done() else None


def _first_problem(path: Path, error: DocumentError) -> str:
    more = len(error.problems) - 1
    rest = f" (and {more} more: extproc check {path})" if more else ""
    return f"{path}: {error.problems[0]}{rest}"
