"""Follows what one endpoint says: a task that asks, waits and asks again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from extproc.adapters.observability.logs import fields
from extproc.adapters.vllm.client import Client, Text
from extproc.adapters.vllm.exposition import read_report
from extproc.adapters.vllm.failure_log import FailureLog
from extproc.adapters.vllm.found_adapters import FoundAdapters
from extproc.adapters.vllm.models_list import read_models
from extproc.adapters.vllm.readings import METRICS, MODELS, Failure, Result, ScrapeListener
from extproc.adapters.vllm.schedule import Pacer, Plan, ReadingTimes
from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.fleet.signals import Signals

log = logging.getLogger("extproc.signals")

# What takes more time to read and to parse takes the place of several readings.
_BYTES_OF_A_READING = 65_536

TOO_LARGE_SECONDS = 60.0
"""Before what was too large is asked again: it cost as much as ten other readings."""

_NO_LIST = (401, 403, 404, 405)
"""Statuses that say that there is no list for us: what was listed before is no longer known. Any
other failure may pass, and adapters must not come and go with it."""


@dataclass(frozen=True)
class ScrapeContext:
    """What all followed endpoints share."""

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
    """For what failed more than once: a fleet that is away costs next to nothing."""


class _PathReadings:
    """One path of an endpoint, asked again and again."""

    def __init__(self, path: str, pacer: Pacer, shared: ScrapeContext, due: float) -> None:
        self.path = path
        self.pacer = pacer
        self.times = ReadingTimes(due, shared.rng)
        self._retries = shared.retries
        self._admitted = False
        self.was_asked = False
        """Whether the first question was answered, or given up."""

    def is_due(self, now: float) -> bool:
        """Whether it is time to ask, and its turn: else it is due when that comes."""
        if self.times.due > now:
            return False
        if not self._admitted and self.was_asked:
            pacer = self.pacer if self.times.failures < 2 else self._retries
            self.times.postpone(now + pacer.reserve(now))
            self._admitted = self.times.due > now
            return not self._admitted
        self._admitted = False
        return True

    def hurry(self, interval: float) -> bool:
        """It shall be asked soon; whether that is sooner. Turns are not jumped."""
        return not self._admitted and self.times.hurry(interval)


class ScrapedEndpoint:
    """One endpoint and its task; `delay` seconds pass before the first reading."""

    def __init__(self, address: str, plan: Plan, shared: ScrapeContext, delay: float) -> None:
        self._address = address
        self._plan = plan
        self._shared = shared
        self._works = False
        self._answers = True
        due = shared.signals.clock() + delay
        self._metrics = _PathReadings(METRICS, shared.metrics, shared, due)
        self._list = _PathReadings(MODELS, shared.lists, shared, due)
        self._woken = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    @property
    def is_known(self) -> bool:
        """Whether it was asked for everything once, or does not answer at all."""
        return all(course.was_asked for course in self._courses())

    def follow(self, plan: Plan) -> None:
        """From now on by this plan."""
        if plan != self._plan:
            self._plan = plan
            self._metrics.hurry(plan.idle)
            self._list.hurry(plan.idle)
            self._woken.set()

    def hurry(self) -> None:
        """It has requests: reads its metrics soon, if it was about to wait longer."""
        if self._plan.metrics and self._metrics.hurry(self._plan.busy):
            self._woken.set()

    async def _run(self) -> None:
        # A task that ends with an error keeps it, its frames, and so us, who keep the task: a
        # cycle for each endpoint that leaves, and the collector seldom looks for them.
        with suppress(asyncio.CancelledError):
            while True:
                await self._ask_when_due()

    async def _ask_when_due(self) -> None:
        course = min(self._courses(), key=lambda one: one.times.due)
        await self._sleep(course.times.due)
        if course.is_due(self._shared.signals.clock()):
            result = await self._ask(course)
            if course is self._metrics:
                self._answers = result is not Result.UNREACHABLE

    def _courses(self) -> list[_PathReadings]:
        """What it is asked for: one thing is enough to learn whether it answers again."""
        lists = self._plan.adapters and (self._answers or not self._plan.metrics)
        courses = ((self._plan.metrics, self._metrics), (lists, self._list))
        return [course for wanted, course in courses if wanted]

    async def _sleep(self, until: float) -> None:
        """Until then, or until woken."""
        seconds = until - self._shared.signals.clock()
        if seconds > 0:
            alarm = asyncio.get_running_loop().call_later(seconds, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                alarm.cancel()
        self._woken.clear()

    async def _ask(self, course: _PathReadings) -> Result:
        clock = self._shared.signals.clock
        course.times.asked = clock()
        failure = await self._read(course)
        if failure is None:
            course.times.succeeded(self._interval(course))
        else:
            course.times.failed(clock(), self._interval(course))
            if failure.result is Result.TOO_LARGE:
                course.times.postpone(clock() + TOO_LARGE_SECONDS)
            self._shared.failures.add(self._address, course.path, failure)
        course.was_asked = True
        result = failure.result if failure else Result.OK
        self._shared.listener.signal_read(course.path, result)
        return result

    async def _read(self, course: _PathReadings) -> Failure | None:
        """Takes what the endpoint says; why it could not, if so. Nothing else gets out."""
        take = self._take_metrics() if course is self._metrics else self._take_list
        try:
            text = await self._shared.client.get(self._address, course.path)
            course.pacer.charge(len(text.content) // _BYTES_OF_A_READING)
            _take(text, take)
        except Failure as failure:
            if course is self._list and failure.status in _NO_LIST:
                self._shared.found.not_listed(self._address)
                self._shared.context_lengths.set(self._address, None)
            return failure
        except Exception as error:
            log.exception("reading failed", extra=fields(endpoint=self._address, path=course.path))
            return Failure(Result.GARBLED, repr(error))
        return None

    def _take_metrics(self) -> Callable[[bytes], None]:
        # Counted when it is asked: what is sent meanwhile, the answer may not know of.
        inflight = self._shared.loads.get(self._address, 0)

        def take(text: bytes) -> None:
            report = read_report(text)
            self._works = report.load.waiting + report.running > 0
            self._shared.signals.record_scrape(self._address, report, inflight)
            if self._plan.adapters:
                used = report.running_adapters | report.waiting_adapters
                self._shared.found.seen(self._address, used)

        return take

    def _take_list(self, text: bytes) -> None:
        models = read_models(text)
        self._shared.found.listed(self._address, models.adapters)
        self._shared.context_lengths.set(self._address, models.max_model_len)

    def _interval(self, course: _PathReadings) -> float:
        busy = self._works or self._shared.loads.get(self._address, 0) > 0
        # Loads change from moment to moment, adapters do not.
        return self._plan.busy if busy and course is self._metrics else self._plan.idle


def _take(text: Text, take: Callable[[bytes], None]) -> None:
    """Of a text that was cut off, the lines that are whole have to do."""
    if text.whole:
        take(text.content)
        return
    try:
        take(text.content[: text.content.rfind(b"\n") + 1])
    except Failure as failure:
        raise Failure(Result.TOO_LARGE, f"{failure}, as far as it is read") from None
