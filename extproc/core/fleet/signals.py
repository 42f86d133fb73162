"""The latest reading of each endpoint, with its age.

There are two sources. A scrape of an endpoint's metrics has all values. The load report of a
response (ORCA) has only the queue and the cache usage. Both are old when they arrive. So each is
kept with its time and with the known in-flight requests at that time, and
`extproc.core.fleet.estimate` adds what has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import NamedTuple, Protocol

from extproc.core.fleet.backlog import Backlog
from extproc.core.fleet.blocked_queue import BlockedQueues
from extproc.core.fleet.cache_sizes import CacheSizes
from extproc.core.fleet.computed_prompts import ComputedPrompts
from extproc.core.fleet.contexts import Contexts
from extproc.core.fleet.copies import Copies
from extproc.core.fleet.engine_times import EngineTimes, Slowness
from extproc.core.fleet.full_batches import FullBatches
from extproc.core.fleet.last_steps import LastSteps
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.prefill_counts import PrefillCounts
from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.fleet.pressure import ObservedLoad, Pressure
from extproc.core.fleet.report import Load, Report
from extproc.core.fleet.residency import Residency
from extproc.core.fleet.speeds import Speeds
from extproc.core.fleet.token_sizes import TokenSizes
from extproc.core.fleet.turns import Turns
from extproc.core.fleet.unseen import Unseen
from extproc.core.fleet.weights import WEIGHTS, Weights

_UNSEEN_SECONDS = 10.0
"""Time after which a request that the metrics do not show has ended on the engine: no step takes
longer."""


class Reading(NamedTuple):
    """The latest known load of an endpoint."""

    load: Load
    running: float
    """Requests in the batch: as scraped, else the known requests that were not waiting."""
    ours: float
    """Known requests that are in those numbers: the in-flight requests at that time, or fewer if
    the endpoint did not have all of them yet."""
    at: float
    """When the load arrived, by the clock of `Signals`."""
    report: Report | None
    """The latest scrape; None if there were only load reports."""
    reported_at: float
    """When that scrape was read."""
    unseen: float = 0.0
    """Known requests that this scrape does not include: vLLM's numbers are those of the end of its
    last step, and these came later."""


class _ByAddress(Protocol):
    """Something that knows each endpoint by its address."""

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""


class Signals:
    """The latest reading of each endpoint, by address; `clock` returns seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        ledger: Ledger | None = None,
        weights: Weights = WEIGHTS,
    ) -> None:
        ledger = ledger or Ledger()
        self.clock = clock
        self._loads = ledger.loads
        self._readings: dict[str, Reading] = {}
        self._since: dict[str, float] = {}
        self._blocked_queues = BlockedQueues()
        self._full_batches = FullBatches()
        self._computed_prompts = ComputedPrompts()
        self._last_steps = LastSteps()
        self._prefill_counts = PrefillCounts()
        self._newest = 0.0
        self._last_scrape = 0.0
        self.residency = Residency()
        """The adapters that each endpoint probably has in memory."""
        self.prefixes = PrefixIndex(clock)
        """The prompts that each endpoint's prefix cache probably holds."""
        self.turns = Turns(clock, self.prefixes, weights.answer)
        """The endpoint where each turn of a conversation was sent."""
        self.token_sizes = TokenSizes()
        """Bytes per token of each model."""
        self.cache_sizes = CacheSizes()
        """The tokens that each endpoint's caches keep."""
        self.engine_times = EngineTimes()
        """The times that engines take, by their own counters."""
        self.speeds = Speeds(clock, self.engine_times)
        """The speeds at which endpoints compute prompts."""
        self.backlog = Backlog(self.speeds, ledger.totals)
        """The prompt tokens that each endpoint has yet to compute."""
        self.copies = Copies(clock, self.prefixes)
        """The value of a further copy of a prefix."""
        self.contexts = Contexts(clock, ledger.totals)
        """The prompts of requests in flight and of paused sessions."""
        self.unseen = Unseen()
        """The requests of other sidecars that a decision does not know yet."""
        self.pressure = Pressure(clock, weights, ledger.totals)
        """The load of endpoints that other sidecars cause."""
        self.totals = ledger.totals
        """The load of each endpoint, of known requests and of others."""
        self._parts: tuple[_ByAddress, ...] = (
            *(self._blocked_queues, self._full_batches, self._last_steps, self._prefill_counts),
            *(self.residency, self.prefixes, self.turns, self.token_sizes, self.cache_sizes),
            *(self.engine_times, self.speeds, self.backlog, self.copies, self.contexts),
            self.pressure,
        )

    def set_endpoints(self, addresses: Collection[str]) -> None:
        """Take the present endpoints: forget those that left, and start new ones slowly."""
        now = self.clock()
        for address in self._since.keys() - set(addresses):
            del self._since[address]
            self._forget(address)
        for address in addresses:
            self._since.setdefault(address, now)
        self._newest = max(self._since.values(), default=now)

    def sent(self, address: str) -> int:
        """Return the number of known requests that have been sent to an endpoint so far."""
        return self.totals.of(address).sent

    def record_scrape(self, address: str, report: Report, inflight: int, sent: int = 0) -> None:
        """Record a scrape of an endpoint.

        `inflight` is its number of requests when the scrape started. `sent` further requests were
        sent to it during the scrape.
        """
        if address not in self._since:
            return  # it left during the scrape
        now = self._last_scrape = self.clock()
        if self._restarted(address, report):
            self._forget(address)
        # Requests that were sent during the scrape may be in it, even if they have ended since, and
        # are not others'.
        ours = max(inflight + sent, self._loads.get(address, 0))
        if address not in self._readings and not ours and _is_unused(report):
            # Earlier requests have been retried elsewhere.
            self.prefixes.forget(address)
            self.turns.forget(address)
        self._read_cache(address, report)
        in_prefill = self._prefill_counts.read(address, report, now)
        self.engine_times.read(address, report, in_prefill, now)
        before = self._readings.get(address)
        earlier = before.report if before else None
        self._computed_prompts.read(earlier, report)
        began = self._last_steps.read(address, report, now)
        # The metrics may not show prompts yet that came after the last step began. This time is an
        # estimate, so twice as much counts.
        has_new = began is None or self.backlog.sent_since(address, 2 * began - now) > 0
        self.token_sizes.read(address, earlier, report, is_idle=in_prefill == 0 and not has_new)
        later = self._later_than_step(address, began, ours - inflight)
        unseen = self._unseen_by(report, inflight) if later is None else float(later)
        if in_prefill is None:
            in_prefill = report.load.waiting
        else:
            self._correct_backlog(address, report, in_prefill, unseen, ours - inflight, now)
        load = ObservedLoad(
            report.load.waiting,
            report.running,
            report.load.kv_usage,
            max(0.0, ours - (later or 0)),
            max(0.0, in_prefill - self.backlog.count(address)),
            report.cache_tokens,
            self._blocked_queues.read(address, report, now),
            self.speeds.tokens(address, self._full_batches.read(address, report, now)),
        )
        self.pressure.record(address, load, self._mean_prompt(), now)
        reading = _reading(report.load, report.running, inflight, now, report, now)
        self._readings[address] = reading._replace(unseen=unseen)
        self.residency.observed(
            address, report.running_adapters | report.waiting_adapters, report.max_loras
        )

    def record_load_report(self, address: str, load: Load) -> None:
        """Record the load report of a response. The engine made it when the request was over."""
        if address not in self._since:
            return
        inflight = max(0, self._loads.get(address, 0) - 1)
        before = self._readings.get(address)
        now = self.clock()
        report, at = (before.report, before.reported_at) if before else (None, now)
        # This sidecar's requests that do not wait must run, also if an older scrape has fewer.
        running = max(report.running if report else 0.0, inflight - load.waiting)
        self._readings[address] = _reading(load, running, inflight, now, report, at)

    def recognize(self, address: str, sent_at: float) -> None:
        """Record that a request became known only now, although it was sent at that time.

        If the endpoint was read in between, its numbers include the request as another's.
        """
        reading = self._readings.get(address)
        if reading is not None and sent_at < reading.at:
            there = reading.load.waiting + reading.running
            self._readings[address] = reading._replace(ours=min(reading.ours + 1, there))
            self.pressure.recognize(address, sent_at)

    def latest(self, address: str) -> Reading | None:
        """Return an endpoint's latest reading of any age; None if there is none."""
        return self._readings.get(address)

    def stale(self, max_age: float) -> frozenset[str]:
        """Return the endpoints whose reading is `max_age` seconds older than the last scrape.

        An endpoint that stops reporting while others report may hang.
        """
        oldest = self._last_scrape - max_age
        return frozenset(a for a, reading in self._readings.items() if reading.at < oldest)

    def slowness(self, addresses: Sequence[str]) -> Slowness:
        """Return the ratios of times to the median endpoint's, if they clearly differ.

        The times come from the engines' own times, or else from how soon they compute prompts.
        """
        known = self.engine_times.slowness(addresses, self.backlog.mean)
        if known is not None:
            return known
        ratios = self.speeds.slowness(addresses)
        return Slowness(ratios, ratios)

    def knows_times(self, address: str) -> bool:
        """Return True if the time of a prompt token is known from the engine's own counters."""
        return self.engine_times.own(address).token < inf

    def age(self, address: str) -> float | None:
        """Return the seconds since an endpoint's reading, or else since the endpoint appeared."""
        reading = self._readings.get(address)
        since = reading.at if reading is not None else self._since.get(address)
        return None if since is None else self.clock() - since

    def fresh(self, addresses: Iterable[str], max_age: float) -> list[Reading | None]:
        """Return the reading of each endpoint; None if it is older than `max_age` seconds."""
        oldest = self.clock() - max_age
        readings = map(self._readings.get, addresses)
        return [one if one is not None and one.at >= oldest else None for one in readings]

    def _mean_prompt(self) -> float:
        """Return the tokens that other sidecars' prompts have to compute on average.

        These are at most those of the sidecar's own prompts, as it expected them.
        """
        mean = self._computed_prompts.mean if self.pressure.share_of_others else None
        return self.backlog.mean if mean is None else min(mean, self.backlog.mean)

    def _forget(self, address: str) -> None:
        """Forget the endpoint's readings and everything that was derived from them."""
        self._readings.pop(address, None)
        for part in self._parts:
            part.forget(address)

    def _read_cache(self, address: str, report: Report) -> None:
        """Take the size of an endpoint's cache from a scrape."""
        uses = None if self.pressure.share_of_others else self.prefixes.uses(address)
        tokens = self.cache_sizes.read(address, report, uses)
        self.prefixes.resize(address, tokens, self.token_sizes.at(address))

    def _restarted(self, address: str, report: Report) -> bool:
        """Return True if one of the engine's counters went down, so its caches are empty, too."""
        before = self._readings.get(address)
        if before is None or before.report is None:
            return False
        for known, now in zip(_counters(before.report), _counters(report), strict=True):
            if known is not None and now is not None and now < known:
                return True
        return False

    def _later_than_step(self, address: str, began: float | None, sent: int) -> int | None:
        """Return the known requests that came after the last step in a report began.

        The `sent` ones that came while it was read do not count. None if unknown, or if there are
        no others' requests: then the difference is more exact.
        """
        if began is None or not self.pressure.share_of_others or not self.backlog.is_known(address):
            return None
        return max(0, self.backlog.sent_since(address, began) - sent)

    def _unseen_by(self, report: Report, inflight: int) -> float:
        """Return the known requests that are not in a report, by the usual share of others' in it.

        vLLM's numbers are those of the end of its last step.
        """
        known = (report.load.waiting + report.running) * (1 - self.pressure.share_of_others)
        return max(0.0, inflight - known)

    def _correct_backlog(
        self,
        address: str,
        report: Report,
        in_prefill: float,
        unseen: float,
        sent: int,
        now: float,
    ) -> None:
        """Remove the prompts from the backlog that a scrape shows as computed.

        The scrape has `in_prefill` requests without a first token. `unseen` known requests are not
        in it, and `sent` ones came while it was read.
        """
        # Clients that read slowly keep finished requests in flight, so old ones do not count.
        later = min(unseen, self.backlog.sent_since(address, now - _UNSEEN_SECONDS))
        self.backlog.at_most(address, int(in_prefill + later) + sent)
        is_busy = self.backlog.count(address) > 0
        self.speeds.observed(address, is_busy=is_busy, total=report.computed_tokens)

    def starting(self, addresses: Sequence[str], seconds: float) -> dict[str, float]:
        """Return the new endpoints, with the share of the usual load that each may have.

        The share grows to 1 over these seconds. Only an endpoint that appeared after others is new.
        If all appeared together, as at the start, none is.
        """
        now = self.clock()
        # There are rarely any, and every request asks.
        if now - self._newest >= seconds:
            return {}
        ages = {address: now - self._since.get(address, 0.0) for address in addresses}
        young = {address: age for address, age in ages.items() if age < seconds}
        grown = seconds if len(young) < len(ages) else max(young.values(), default=0.0)
        return {address: age / grown for address, age in young.items() if age < grown}


def _is_unused(report: Report) -> bool:
    """Return True if the metrics show no request since the engine started."""
    return not (report.load.waiting or report.running or report.prompt_tokens)


def _counters(report: Report) -> tuple[float | None, ...]:
    """Return counters that only grow while an engine runs. An old vLLM has some of them."""
    return (
        *(report.prompt_tokens, report.responded_tokens, report.first_tokens),
        *(report.finished, report.preemptions),
    )


def _reading(
    load: Load, running: float, inflight: int, at: float, report: Report | None, reported_at: float
) -> Reading:
    return Reading(load, running, min(inflight, load.waiting + running), at, report, reported_at)
