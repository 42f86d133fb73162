"""What endpoints say of themselves: the latest word of each, and how old it is.

Two sources write here. A reading of an endpoint's own metrics says everything; the
load report that comes with an answer (ORCA) says only what waits and how full the
cache is. Both are already old when they arrive, so each is kept with its time and
with what this sidecar had in flight there, and `extproc.core.fleet.estimate` adds what
has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from extproc.core.fleet.backlog import Backlog
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.fleet.pressure import ObservedLoad, Pressure
from extproc.core.fleet.residency import Residency
from extproc.core.fleet.rolling_minimum import RollingMinimum
from extproc.core.fleet.weights import WEIGHTS, Weights

MOST_REQUESTS = 1_000_000
"""That wait, or that run, on one endpoint: one that says more is wrong, and would outweigh all."""

_FULLEST_CACHE = 1.05
"""A share may be rounded; what is above that is none, such as a number of percent."""


class Load(NamedTuple):
    """What waits and how full the cache is."""

    waiting: float
    """Requests in the endpoint's queue."""

    kv_usage: float
    """Share of the KV cache that running requests hold, 0 to 1."""


def sound_load(waiting: float, kv_usage: float) -> Load | None:
    """The load that an endpoint says it has; None for numbers that no endpoint can have."""
    # NaN is not within any bounds.
    if not (0 <= waiting <= MOST_REQUESTS and 0 <= kv_usage <= _FULLEST_CACHE):
        return None
    return Load(waiting, min(kv_usage, 1.0))


class Report(NamedTuple):
    """All that an endpoint's metrics say."""

    load: Load
    running: float
    """Requests in the batch."""

    max_loras: int | None = None
    """Adapters that one batch can have; None where LoRA is off."""

    running_adapters: frozenset[str] = frozenset()
    """Adapters that running requests use."""

    waiting_adapters: frozenset[str] = frozenset()
    """Adapters that waiting requests need."""

    block_size: int | None = None
    """Tokens of a block of the KV cache."""

    blocks: int | None = None
    """Blocks of the KV cache."""

    prompt_tokens: float | None = None
    """Of all requests since the engine started."""

    cached_tokens: float | None = None
    """Of those, found in the cache."""

    first_tokens: float | None = None
    """Given out since the engine started: requests whose answers have begun."""

    finished: float | None = None
    """Requests that are over since the engine started, however they ended."""


class Reading(NamedTuple):
    """The latest word of an endpoint."""

    load: Load
    running: float
    """Requests in the batch: as reported, else those of ours that were not waiting."""
    ours: float
    """Our requests that are in those figures: what we had in flight there, or fewer if it did
    not know of all."""
    at: float
    """When it said so, by the clock of `Signals`."""
    report: Report | None
    """Its latest metrics; None where only answers told of it."""
    reported_at: float
    """When those were read."""


class Signals:
    """The latest reading of each endpoint, by address; `clock` gives seconds."""

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
        self._quiet: dict[str, RollingMinimum] = {}
        self._newest = 0.0
        self._last_word = 0.0
        self.residency = Residency()
        """Which adapters each endpoint probably has in memory."""
        self.prefixes = PrefixIndex()
        """Which prompts each endpoint's prefix cache probably holds."""
        self.backlog = Backlog()
        """What each endpoint has yet to compute."""
        self.pressure = Pressure(weights, ledger.totals, self.backlog.totals)
        """What weighs on endpoints beside our own requests."""
        self.requests: Mapping[str, float] = ledger.totals.sums
        """Ours and others', by address; 0 where nothing is known."""
        self.tokens: Mapping[str, float] = self.backlog.totals.sums
        """What is to be computed of ours and others', by address; 0 where nothing is known."""

    def set_endpoints(self, addresses: Collection[str]) -> None:
        """These are the endpoints now: new ones start slowly, what others said is forgotten."""
        now = self.clock()
        for address in self._since.keys() - set(addresses):
            del self._since[address]
            self._forget(address)
        for address in addresses:
            self._since.setdefault(address, now)
        self._newest = max(self._since.values(), default=now)

    def record_scrape(self, address: str, report: Report, inflight: int) -> None:
        """An endpoint's metrics were read; `inflight` are our requests there when we asked."""
        if address not in self._since:
            return  # it left while it was asked
        now = self._last_word = self.clock()
        if self._began_anew(address, report):
            self._forget(address)
        if address not in self._readings:
            self.prefixes.forget(address)  # what was sent before it spoke may have gone elsewhere
        if report.blocks is not None and report.block_size is not None:
            self.prefixes.resize(address, report.blocks * report.block_size)
        # Requests that were sent while we asked may be in the answer, and are nobody else's.
        ours = max(inflight, self._loads.get(address, 0))
        pending = self._yet_to_begin(address, report)
        if pending is not None:
            # What was sent since we asked, the answer does not know of.
            self.backlog.at_most(address, int(pending) + ours - inflight)
        others = (report.load.waiting if pending is None else pending) - self.backlog.count(address)
        word = ObservedLoad(
            report.load.waiting, report.running, report.load.kv_usage, ours, max(0.0, others)
        )
        self.pressure.record(address, word, self.backlog.mean, now)
        self._readings[address] = _reading(report.load, report.running, inflight, now, report, now)
        self.residency.observed(
            address, report.running_adapters | report.waiting_adapters, report.max_loras
        )

    def record_load_report(self, address: str, load: Load) -> None:
        """An answer carried a load report. It was made when the request was over."""
        if address not in self._since:
            return
        inflight = max(0, self._loads.get(address, 0) - 1)
        before = self._readings.get(address)
        now = self.clock()
        report, at = (before.report, before.reported_at) if before else (None, now)
        # Those of ours that do not wait must run, whatever an older report says.
        running = max(report.running if report else 0.0, inflight - load.waiting)
        self._readings[address] = _reading(load, running, inflight, now, report, at)

    def latest(self, address: str) -> Reading | None:
        """The last word of an endpoint, however old; None where there was none."""
        return self._readings.get(address)

    def stale(self, max_age: float) -> frozenset[str]:
        """Those that spoke once, but not in the `max_age` seconds before somebody's last word."""
        oldest = self._last_word - max_age
        return frozenset(a for a, reading in self._readings.items() if reading.at < oldest)

    def age(self, address: str) -> float | None:
        """Seconds since an endpoint said how loaded it is, since it came where it never did."""
        reading = self._readings.get(address)
        since = reading.at if reading is not None else self._since.get(address)
        return None if since is None else self.clock() - since

    def fresh(self, addresses: Iterable[str], max_age: float) -> list[Reading | None]:
        """The reading of each endpoint; None where it is older than `max_age` seconds."""
        oldest = self.clock() - max_age
        readings = map(self._readings.get, addresses)
        return [one if one is not None and one.at >= oldest else None for one in readings]

    def _forget(self, address: str) -> None:
        """All that it said and all that is believed of it."""
        self._readings.pop(address, None)
        self.pressure.forget(address)
        self._quiet.pop(address, None)
        self.residency.forget(address)
        self.prefixes.forget(address)
        self.backlog.forget(address)

    def _began_anew(self, address: str, report: Report) -> bool:
        """Whether the engine's counters are below what they were: its caches are empty, too."""
        before = self._readings.get(address)
        known = before.report.prompt_tokens if before and before.report else None
        now = report.prompt_tokens
        return known is not None and now is not None and now < known

    def _yet_to_begin(self, address: str, report: Report) -> float | None:
        """Requests of everybody whose answers have not begun; None where nothing tells.

        All that are there or over, without those that got a first token. Some end without one,
        and are counted for ever: as many as there seem to be at the quietest moment of late.
        """
        if report.first_tokens is None or report.finished is None:
            return None
        waiting = report.load.waiting
        seen = waiting + report.running + report.finished - report.first_tokens
        quiet = self._quiet.setdefault(address, RollingMinimum())
        return max(waiting, seen - quiet.add(seen, self.clock()))

    def new_endpoints(self, addresses: Iterable[str], max_age: float) -> dict[str, float]:
        """Those that came less than `max_age` seconds ago, with their ages."""
        now = self.clock()
        # Nearly always there are none, and this is asked for each request.
        if now - self._newest >= max_age:
            return {}
        ages = {address: now - self._since.get(address, 0.0) for address in addresses}
        return {address: age for address, age in ages.items() if age < max_age}


def _reading(
    load: Load, running: float, inflight: int, at: float, report: Report | None, reported_at: float
) -> Reading:
    return Reading(load, running, min(inflight, load.waiting + running), at, report, reported_at)
