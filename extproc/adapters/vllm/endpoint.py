"""Reads one endpoint again and again, in a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from extproc.adapters.observability.logs import fields
from extproc.adapters.vllm.client import Client, ResponseBody
from extproc.adapters.vllm.exposition import read_report
from extproc.adapters.vllm.failure_log import FailureLog
from extproc.adapters.vllm.found_adapters import FoundAdapters
from extproc.adapters.vllm.models_list import read_models
from extproc.adapters.vllm.readings import METRICS, MODELS, Failure, Result, ScrapeListener
from extproc.adapters.vllm.schedule import FirstReadings, Pacer, PathReader, Plan
from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.fleet.signals import Signals

log = logging.getLogger("extproc.signals")

# A longer response counts as several readings.
_BYTES_OF_A_READING = 65_536

TOO_LARGE_SECONDS = 60.0
"""Wait after a response that was too large, which costs as much as ten other readings."""

_NO_LIST = (401, 403, 404, 405)
"""Statuses of an endpoint that gives the sidecar no list, so an earlier list is dropped. Any other
failure may be temporary, and adapters must not disappear because of it."""


@dataclass(frozen=True)
class ScrapeContext:
    """Objects that all scraped endpoints share."""

    client: Client
    signals: Signals
    loads: Mapping[str, int]
    found: FoundAdapters
    context_lengths: ContextLengths
    listener: ScrapeListener
    failures: FailureLog
    rng: Random
    metrics: Pacer
    lists: Pacer
    retries: Pacer
    """Pacer of endpoints that failed more than once, so that a failed fleet costs little."""


class ScrapedEndpoint:
    """One endpoint and its task; `delay` seconds pass before the first reading."""

    def __init__(self, address: str, plan: Plan, shared: ScrapeContext, delay: float) -> None:
        self._address = address
        self._plan = plan
        self._shared = shared
        self._busy = False
        self._reachable = True
        due = shared.signals.clock() + delay
        retries, rng = shared.retries, shared.rng
        self._metrics = PathReader(METRICS, shared.metrics, retries, due, rng)
        self._list = PathReader(MODELS, shared.lists, retries, due, rng)
        self._first = FirstReadings(shared.metrics)
        self._woken = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    @property
    def is_known(self) -> bool:
        """True if everything was read once, or the endpoint is unreachable."""
        return all(reader.was_read for reader in self._wanted_readers())

    def set_plan(self, plan: Plan) -> None:
        """Use this plan for the next readings."""
        if plan != self._plan:
            self._plan = plan
            self._metrics.hurry(plan.idle)
            self._list.hurry(plan.idle)
            self._woken.set()

    def hurry(self) -> None:
        """Read the metrics soon, because the endpoint has requests."""
        known, now = self._knows_times(), self._shared.signals.clock()
        interval = self._first.interval(self._plan, now, are_times_known=known)
        if self._plan.metrics and self._metrics.hurry(interval):
            self._woken.set()

    async def _run(self) -> None:
        # A task that ends with an error refers to its frames, and so to this object, which refers
        # to the task. That would be a cycle for each endpoint that leaves.
        with suppress(asyncio.CancelledError):
            while True:
                await self._read_when_due()

    async def _read_when_due(self) -> None:
        reader = min(self._wanted_readers(), key=lambda one: one.times.due)
        await self._sleep(reader.times.due)
        if reader.is_due(self._shared.signals.clock()):
            result = await self._read_and_schedule(reader)
            if reader is self._metrics:
                self._reachable = result is not Result.UNREACHABLE

    def _wanted_readers(self) -> list[PathReader]:
        """Return the readers that the plan wants; only the metrics while unreachable."""
        lists = self._plan.adapters and (self._reachable or not self._plan.metrics)
        readers = ((self._plan.metrics, self._metrics), (lists, self._list))
        return [reader for wanted, reader in readers if wanted]

    async def _sleep(self, until: float) -> None:
        """Sleep until then, or until woken."""
        seconds = until - self._shared.signals.clock()
        if seconds > 0:
            alarm = asyncio.get_running_loop().call_later(seconds, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                alarm.cancel()
        self._woken.clear()

    async def _read_and_schedule(self, reader: PathReader) -> Result:
        clock = self._shared.signals.clock
        reader.times.started = clock()
        failure = await self._read(reader)
        # Loads change all the time, adapters do not.
        is_busy = reader is self._metrics and self._has_requests()
        interval = self._plan.busy if is_busy else self._plan.idle
        if failure is None:
            if is_busy:
                known = self._knows_times()
                interval = self._first.after_reading(self._plan, clock(), are_times_known=known)
            reader.times.succeeded(interval)
        else:
            reader.times.failed(clock(), interval)
            if failure.result is Result.TOO_LARGE:
                reader.times.postpone(clock() + TOO_LARGE_SECONDS)
            self._shared.failures.add(self._address, reader.path, failure)
        reader.was_read = True
        result = failure.result if failure else Result.OK
        self._shared.listener.signal_read(reader.path, result)
        return result

    async def _read(self, reader: PathReader) -> Failure | None:
        """Read a path and record the result; return the failure, if any. Raises nothing."""
        take = self._take_metrics() if reader is self._metrics else self._take_list
        try:
            text = await self._shared.client.get(self._address, reader.path)
            reader.pacer.charge(len(text.content) // _BYTES_OF_A_READING)
            _take(text, take)
        except Failure as failure:
            if reader is self._list and failure.status in _NO_LIST:
                self._shared.found.not_listed(self._address)
                self._shared.context_lengths.set(self._address, None)
            return failure
        except Exception as error:
            log.exception(
                "unexpected error in a reading",
                extra=fields(endpoint=self._address, path=reader.path),
            )
            return Failure(Result.GARBLED, repr(error))
        return None

    def _take_metrics(self) -> Callable[[bytes], None]:
        # Counted before the request: the response may not include requests that arrive later.
        inflight = self._shared.loads.get(self._address, 0)
        signals, before = self._shared.signals, self._shared.signals.sent(self._address)

        def take(text: bytes) -> None:
            report = read_report(text)
            self._busy = report.load.waiting + report.running > 0
            sent = max(0, signals.sent(self._address) - before)
            signals.record_scrape(self._address, report, inflight, sent)
            if self._plan.adapters:
                used = report.running_adapters | report.waiting_adapters
                self._shared.found.seen(self._address, used)

        return take

    def _take_list(self, text: bytes) -> None:
        models = read_models(text)
        if not self._plan.adapters:
            return  # the plan changed during the reading
        self._shared.found.listed(self._address, models.adapters)
        self._shared.context_lengths.set(self._address, models.max_model_len)

    def _has_requests(self) -> bool:
        return self._busy or self._shared.loads.get(self._address, 0) > 0

    def _knows_times(self) -> bool:
        return self._shared.signals.knows_times(self._address)


def _take(text: ResponseBody, take: Callable[[bytes], None]) -> None:
    """Pass a body on; if it was cut off, only its complete lines."""
    if text.whole:
        take(text.content)
        return
    try:
        take(text.content[: text.content.rfind(b"\n") + 1])
    except Failure as failure:
        raise Failure(Result.TOO_LARGE, f"{failure} in the part that was read") from None
