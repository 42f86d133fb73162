"""The scraping of a simulated fleet by one sidecar, at the times of the product's own scraper."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random

from extproc.adapters.vllm.readings import METRICS
from extproc.adapters.vllm.schedule import (
    FIRST_PER_SECOND,
    METRICS_PER_SECOND,
    TOGETHER,
    FirstReadings,
    Pacer,
    PathReader,
    Plan,
)
from extproc.core.fleet.report import Load, PrefillTotals, Report, StepTotals
from extproc.core.fleet.signals import Signals
from extproc.lab.engine.replica import Replica
from extproc.lab.simulation.timeline import Timeline


class _Scraped:
    """An engine that is scraped."""

    def __init__(self, address: str, plan: Plan, engine: Replica, reader: PathReader) -> None:
        self.address = address
        self.plan = plan
        self.engine = engine
        self.reader = reader
        self.first = FirstReadings(reader.pacer)


class Scraping:
    """Scrapes a set of engines, which `follow` replaces.

    A sidecar reads all engines before it takes requests. So its first readings take no time here,
    and the next ones are due at random times, as if it had run for some time.
    """

    def __init__(
        self, timeline: Timeline, signals: Signals, loads: Mapping[str, int], rng: Random
    ) -> None:
        self._timeline = timeline
        self._signals = signals
        self._loads = loads
        self._rng = rng
        self._pacer = Pacer(METRICS_PER_SECOND, TOGETHER)
        self._scraped: dict[str, _Scraped] = {}
        self._has_started = False

    def follow(self, plans: Mapping[str, Plan], engines: Mapping[str, Replica]) -> None:
        """Scrape these engines, by address, from now on."""
        before, self._scraped = self._scraped, {}
        new = list[_Scraped]()
        for address, plan in plans.items():
            one = before.get(address)
            if one is None or one.engine is not engines[address]:
                reader = PathReader(METRICS, self._pacer, self._pacer, 0.0, self._rng)
                one = _Scraped(address, plan, engines[address], reader)
                new.append(one)
            self._scraped[address] = one
        if plans and not self._has_started:
            self._has_started = True
            self._start(new)
        else:
            for position, one in enumerate(new):
                one.reader.times.due = self._timeline.now + position / FIRST_PER_SECOND
                self._schedule(one)

    def _start(self, scraped: list[_Scraped]) -> None:
        for one in scraped:
            self._read(one)
            one.reader.times.started -= self._rng.random() * one.plan.idle
            one.reader.times.succeeded(one.plan.idle)
            self._schedule(one)
        interval = min(one.plan.busy for one in scraped) / 2
        first = self._timeline.now + self._rng.random() * interval
        self._timeline.at(first, partial(self._wake_busy_engines, interval))

    def _wake_busy_engines(self, interval: float) -> None:
        """Read engines soon that became busy, now and after each interval."""
        now = self._timeline.now
        self._timeline.at(now + interval, partial(self._wake_busy_engines, interval))
        for address in self._loads:
            one = self._scraped.get(address)
            if one is None:
                continue
            known = self._signals.knows_times(address)
            if one.reader.hurry(one.first.interval(one.plan, now, are_times_known=known)):
                self._schedule(one)

    def _schedule(self, one: _Scraped) -> None:
        due = one.reader.times.due
        self._timeline.at(due, partial(self._read_if_due, one, due))

    def _read_if_due(self, one: _Scraped, due: float) -> None:
        """Read an engine, unless it has left, or is read at another time instead of `due`."""
        if self._scraped.get(one.address) is not one or one.reader.times.due != due:
            return
        if one.reader.is_due(self._timeline.now):
            one.reader.times.succeeded(self._read(one))
        self._schedule(one)

    def _read(self, one: _Scraped) -> float:
        """Read an engine. Return the interval until the next reading."""
        one.reader.times.started = now = self._timeline.now
        one.reader.was_read = True
        inflight, report = self._loads.get(one.address, 0), _report(one.engine)
        self._signals.record_scrape(one.address, report, inflight)
        if not inflight and not report.load.waiting + report.running:
            return one.plan.idle
        known = self._signals.knows_times(one.address)
        return one.first.after_reading(one.plan, now, are_times_known=known)


def _report(replica: Replica) -> Report:
    """Return the load report that vLLM's metrics would give now."""
    profile, stats = replica.profile, replica.stats
    return Report(
        Load(stats.waiting, stats.kv_usage),
        stats.running,
        profile.max_loras or None,
        stats.running_adapters,
        stats.waiting_adapters,
        profile.block_size,
        profile.kv_blocks,
        stats.queries,
        stats.hits + stats.host_hits,
        replica.first_tokens_total,
        replica.finished_total,
        stats.preemptions,
        first_token_seconds=replica.first_token_seconds_total,
        steps=StepTotals(
            replica.steps_total,
            replica.computed_tokens_total,
            replica.inter_token_seconds_total,
            replica.inter_token_times_total,
        ),
        prefills=PrefillTotals(
            replica.prefills.prompts, replica.prefills.seconds, replica.prefills.tokens
        ),
        responded_tokens=replica.prompt_tokens_total,
    )
