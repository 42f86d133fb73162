"""The composition root: it builds, starts, drains and closes all parts of the sidecar."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from extproc.adapters.allocator import keep_freed_memory
from extproc.adapters.configuration.config_map import ModelsConfigMap
from extproc.adapters.configuration.configuration import Configuration
from extproc.adapters.configuration.document import DocumentError
from extproc.adapters.configuration.file import ModelsFile
from extproc.adapters.discovery.discovery import Discovery
from extproc.adapters.discovery.publisher import Publisher
from extproc.adapters.dispatcher import Dispatcher
from extproc.adapters.dns.resolver import Resolver
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.adapters.kubernetes.objectives import Objectives
from extproc.adapters.observability.config_metrics import DocumentSource
from extproc.adapters.observability.ejections import EjectionReport
from extproc.adapters.observability.logs import fields
from extproc.adapters.observability.telemetry import Telemetry
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.adapters.tracing.endpoint import OtlpEndpoint
from extproc.adapters.vllm.scraper import Scraper
from extproc.compiled import COMPILED
from extproc.core.fleet.fleet import Fleet
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.routing.catalog import Catalog
from extproc.core.routing.router import Router
from extproc.edge.admin import admin_app
from extproc.edge.admin_server import AdminServer
from extproc.edge.ext_proc.service import ExternalProcessor
from extproc.edge.grpc.fast_server import FastServer
from extproc.edge.grpc.server import Server
from extproc.edge.listening import CannotListen
from extproc.explain import explain_now
from extproc.settings import ConfigMapName, Settings

if TYPE_CHECKING:
    from extproc.adapters.shared_state.link import SharedStateLink
    from extproc.adapters.tracing.otlp import OtlpTracing

log = logging.getLogger("extproc")

_SYNC_POLL_SECONDS = 0.02
_COLLECTOR_THRESHOLD = 50_000
"""New objects that trigger the garbage collector: more than are alive while a hundred requests are
decided at once, and a few megabytes."""
_SYNC_SECONDS = 2.0
"""The longest wait for the other sidecars' state, because their server may be away."""
_QUEUE_GRACE = 0.8
"""Share of the grace period after which requests that still wait for room are refused."""
_SETTLE_SECONDS = 3.0
"""The longest wait for the first readings of endpoints, because model servers may be broken."""


class StartError(Exception):
    """A failed start; the message is one line for the operator."""


class ModelsSource(DocumentSource, Protocol):
    """The source of the models document: a file or a ConfigMap."""

    @property
    def trouble(self) -> str:
        """The reason why there is no document yet."""

    async def load(self) -> None:
        """Apply the first document. Raises DocumentError, OSError, KubernetesError."""

    async def watch(self) -> None:
        """Apply each change until cancelled."""

    async def close(self) -> None:
        """Stop watching."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises StartError."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    sidecar = Sidecar(settings)
    try:
        stopped = asyncio.create_task(stopping.wait())
        started = asyncio.create_task(sidecar.start())
        await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            await started
            await stopped
        else:
            started.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            # A second signal skips the drain. Python's handler of SIGINT would print a traceback.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        await sidecar.drain()
    finally:
        await sidecar.close()


class Sidecar:
    """All parts of a running sidecar."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        rng = Random()
        self._fleet = Fleet(monotonic)
        self._router = Router(self._fleet, rng=rng, fallbacks=not settings.single_endpoint)
        self._flow = FlowControl(self._router, monotonic)
        self._dispatcher = Dispatcher(self._flow)
        self._telemetry = Telemetry(self._fleet, self._catalog)
        self._flow.listener = self._telemetry.control_flow(self._flow)
        self._fleet.ejection.listeners.append(EjectionReport(self._telemetry))
        self._publisher = Publisher(self._router)
        self._scraper = Scraper(self._fleet, self._router.publish, self._telemetry, rng)
        self._router.subscribe(self._scraper.set_models)
        self._cluster = Cluster(settings.kubeconfig, allow_loopback=settings.allow_loopback)
        resolve = Resolver(settings.dns_server).resolve
        self._discovery = Discovery(
            self._cluster, self._publisher.publish, self._telemetry.discovery, rng, resolve
        )
        self._telemetry.set_ages(self._discovery.age)
        self._objectives = Objectives(
            self._cluster, self._flow.set_objectives, self._telemetry.discovery, rng
        )
        self._router.subscribe(self._objectives.set_models)
        configuration = Configuration(
            self._router, self._fleet.signals, self._discovery, self._telemetry, rng
        )
        self._models = self._models_source(settings.models, configuration, rng)
        self._telemetry.configuration.source = self._models
        self._tracing = _tracing(settings.otlp, self._telemetry)
        processor = ExternalProcessor(
            self._router,
            self._telemetry,
            rng,
            log_prompts=settings.log_prompts,
            pass_unknown=settings.pass_unknown,
            flow=self._flow,
            tracing=self._tracing,
        )
        self._grpc = _server(settings, processor)
        self._link = self._shared_state(settings.shared_state)
        admin = admin_app(
            self._fleet,
            self._catalog,
            self._telemetry,
            self._why_not_ready,
            self._link.document if self._link else None,
            self._flow,
            self._explained if settings.status_page else None,
        )
        self._admin = AdminServer(admin)
        self._watching: asyncio.Task[None] | None = None
        self._serving = False
        self._draining = False

    async def start(self) -> None:
        """Listen, load the configuration and discover the endpoints. Raises StartError.

        Until then, each stream that Envoy opens ends at once with UNAVAILABLE. Envoy then uses its
        fallback, and no client gets an error because endpoints are unknown.
        """
        try:
            with _named("--admin"):
                await self._admin.start(self._settings.admin)
            with _named("--listen"):
                await self._grpc.start(self._settings.listen)
            await self._models.load()
            self._watching = asyncio.create_task(self._models.watch())
            while self._discovery.why_not_synced():
                await asyncio.sleep(_SYNC_POLL_SECONDS)
            await self._publisher.settle()
            await self._scraper.settle(_SETTLE_SECONDS)
            if self._link is not None:
                await self._link.start(_SYNC_SECONDS)
        except DocumentError as error:
            raise StartError(self._first_problem(error)) from None
        except KubernetesError as error:
            raise StartError(f"{self._models}: {error}") from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise StartError(f"{where}{error.strerror or error}") from None
        tune_garbage_collector()
        keep_freed_memory()
        self._serving = True
        await self._grpc.set_serving(True)
        if self._settings.log_prompts:
            log.warning("prompts are logged, at level debug")
        listen, admin = self._settings.listen, self._settings.admin
        log.info("serving", extra=fields(listen=listen, admin=admin, compiled=COMPILED))

    async def drain(self) -> None:
        """Report unready, refuse new streams, and wait for the running ones."""
        self._draining = True
        await self._grpc.set_serving(False)
        log.info("draining", extra=fields(streams=self._streams(), grace=self._settings.grace))
        grace = self._settings.grace
        refusing = asyncio.get_running_loop().call_later(grace * _QUEUE_GRACE, self._flow.drain)
        await self._grpc.stop(grace)
        refusing.cancel()
        log.info("stopped")

    async def close(self) -> None:
        """Stop all parts, whether they were started or not."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._grpc.stop(0)
        self._dispatcher.close()
        if self._link is not None:
            await self._link.close()
        await self._models.close()
        await self._discovery.keep_only(())
        await self._publisher.close()
        await self._objectives.close()
        await self._scraper.close()
        await self._cluster.close()
        await self._admin.stop()
        if self._tracing is not None:
            await self._tracing.close()

    def _models_source(
        self, models: Path | ConfigMapName, configuration: Configuration, rng: Random
    ) -> ModelsSource:
        if isinstance(models, Path):
            return ModelsFile(models, configuration)
        return ModelsConfigMap(
            models.namespace,
            models.name,
            self._cluster,
            configuration,
            self._telemetry.discovery,
            rng,
        )

    def _shared_state(self, server: SharedStateServer | None) -> SharedStateLink | None:
        """Return the link to the shared state. Raises StartError if the URL is not usable."""
        if server is None:
            return None
        # An optional part, which is not imported without the flag.
        from extproc.adapters.shared_state.link import SharedStateLink

        try:
            server.check()
        except ValueError as error:
            raise StartError(f"--shared-state {error}") from None
        link = SharedStateLink(server, self._fleet, self._telemetry.share_state(), monotonic)
        self._flow.room.peers = link.peers
        return link

    def _catalog(self) -> Catalog:
        return self._router.catalog

    def _explained(
        self, body: bytes, path: str, headers: Mapping[str, str]
    ) -> Mapping[str, object]:
        pass_unknown = self._settings.pass_unknown
        found = explain_now(
            self._router, body, path, headers, flow=self._flow, pass_unknown=pass_unknown
        )
        return found.as_dict()

    def _streams(self) -> int:
        return self._fleet.ledger.ours().total()

    def _why_not_ready(self) -> str | None:
        if self._draining:
            return "draining"
        if self._watching is None:
            # The document is in force once its endpoints are known.
            waits_for = self._discovery.why_not_synced()
            return waits_for or f"{self._models}: {self._models.trouble}"
        if not self._serving:
            return self._discovery.why_not_synced() or "starting"
        # The task ends only by cancellation. If it ended otherwise, changes would not arrive.
        return f"{self._models} is no longer watched" if self._watching.done() else None

    def _first_problem(self, error: DocumentError) -> str:
        more = len(error.problems) - 1
        check = f": extproc check {self._models}" if isinstance(self._models, ModelsFile) else ""
        rest = f" (and {more} more{check})" if more else ""
        return f"{self._models}: {error.problems[0]}{rest}"


def tune_garbage_collector() -> None:
    """Run the garbage collector rarely, because requests create no reference cycles.

    With the defaults it takes a tenth of the CPU time. The objects of the start are never scanned
    again, and new ones only after many allocations.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTOR_THRESHOLD)


@contextmanager
def _named(flag: str) -> Iterator[None]:
    """Name the flag whose address cannot be bound. Raises StartError."""
    try:
        yield
    except CannotListen as error:
        raise StartError(f"{flag}: {error}") from None


def _tracing(endpoint: OtlpEndpoint | None, telemetry: Telemetry) -> OtlpTracing | None:
    if endpoint is None:
        return None
    # An optional part, which is not imported without the flag.
    from extproc.adapters.tracing.otlp import OtlpTracing

    return OtlpTracing(endpoint, telemetry.trace())


def _server(settings: Settings, processor: ExternalProcessor) -> Server:
    if settings.transport == "fast":
        return FastServer(processor, settings.tls)
    # An optional dependency, which starts threads when it is imported.
    from extproc.edge.grpc.grpcio_server import GrpcioServer

    return GrpcioServer(processor, settings.tls)
