"""The link to the shared state: it exchanges batches with the server until it is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import NamedTuple, TypedDict

from extproc.adapters.observability.logs import fields
from extproc.adapters.observability.shared_state_metrics import SharedStateMetrics
from extproc.adapters.shared_state.checkpoints import Checkpoints
from extproc.adapters.shared_state.codec import UnreadableError, decode_batch, encode_batch
from extproc.adapters.shared_state.server import TIMEOUT_SECONDS, SharedStateServer
from extproc.adapters.shared_state.stream import BatchStream, Entry
from extproc.core.fleet.fleet import Fleet
from extproc.core.sharing.batch import SENT_AGO
from extproc.core.sharing.journal import Journal
from extproc.core.sharing.peers import SILENT_SECONDS, Peers

log = logging.getLogger("extproc.shared_state")

INTERVAL_SECONDS = 0.02
"""Seconds between two exchanges while there are requests."""

IDLE_INTERVAL_SECONDS = 0.05
"""Seconds between two exchanges after a second without a request."""

HELD_SECONDS = 1.0
"""Seconds between two reports of all requests in flight."""

_RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
"""Waits before the next connection. The longest is short, so that sidecars agree again within two
seconds after an outage."""

_LAG_WEIGHT = 0.05


class PeerDocument(TypedDict):
    """One other sidecar."""

    id: str
    inflight: int
    age_seconds: float


class SharedStateDocument(TypedDict):
    """The shared state, for `/debug/state`."""

    connected: bool
    id: str
    lag_seconds: float
    """Mean of the recent seconds from an event at another sidecar to its arrival here."""
    peers: list[PeerDocument]


class _Unwritten(NamedTuple):
    """A batch that waits to be written."""

    message: bytes
    taken_at: float
    has_held: bool


class SharedStateLink:
    """Shares a fleet's state with other sidecars; `clock` returns seconds."""

    def __init__(
        self,
        server: SharedStateServer,
        fleet: Fleet,
        metrics: SharedStateMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._server = server
        self._metrics = metrics
        self._clock = clock
        origin = token_hex(8)
        self._origin = origin
        self._woken = asyncio.Event()
        self._closing = asyncio.Event()
        self._journal = Journal(origin, fleet, clock, self._woken.set)
        self._peers = Peers(origin, fleet, clock)
        self._checkpoints = Checkpoints(fleet, server.key)
        self._task: asyncio.Task[None] | None = None
        self._is_connected = False
        self._position: tuple[int, int] | None = None
        self._unwritten: _Unwritten | None = None
        self._synced = asyncio.Event()
        self._held_at = self._active_at = -HELD_SECONDS
        self._lag = 0.0
        metrics.peers = self.peers
        metrics.connected = lambda: self._is_connected

    def peers(self) -> int:
        """Return the number of other sidecars that share their state."""
        return len(self._peers)

    async def start(self, seconds: float) -> None:
        """Connect, and wait until the others' state is known, but no longer than `seconds`."""
        self._task = asyncio.create_task(self._run())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._synced.wait()

    async def close(self) -> None:
        """Report to the others that this sidecar stops, and disconnect."""
        self._closing.set()
        self._woken.set()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=2 * TIMEOUT_SECONDS)
        # A library that waits may swallow a cancellation, so repeat it.
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=0.1)

    def document(self) -> SharedStateDocument:
        """Return the shared state for `/debug/state`."""
        return {
            "connected": self._is_connected,
            "id": self._origin,
            "lag_seconds": round(self._lag, 4),
            "peers": [
                {"id": one.id, "inflight": one.inflight, "age_seconds": round(one.age_seconds, 3)}
                for one in self._peers.states()
            ],
        }

    async def _run(self) -> None:
        """Connect again and again until closed."""
        from redis import RedisError

        failures = 0
        while not self._closing.is_set():
            try:
                await self._use_connection()
            except Exception as error:
                failures = 1 if self._is_connected else failures + 1
                if failures == 1:
                    # A timeout has no text.
                    why = str(error) or f"no response within {TIMEOUT_SECONDS:g} s"
                    is_unexpected = not isinstance(error, RedisError | OSError)
                    log.warning(
                        "shared state unavailable",
                        exc_info=is_unexpected,
                        extra=fields(server=str(self._server), error=why),
                    )
                self._is_connected = False
                await self._wait(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS)) - 1])
                self._peers.expire()

    async def _use_connection(self) -> None:
        """Exchange batches through a new connection until it fails or the link is closed."""
        connection = self._server.connection()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await connection.connect()  # type: ignore[no-untyped-call]
            stream = BatchStream(connection, self._server.key, self._origin, self._clock)
            await stream.begin(self._position)
            if self._position is None:
                await self._restore(stream)
            while not self._closing.is_set():
                await self._exchange(stream)
                self._connected()
                await self._pause()
            await stream.exchange(encode_batch(self._journal.take(is_last=True)))
        finally:
            await connection.disconnect(nowait=True)

    async def _restore(self, stream: BatchStream) -> None:
        """Read what the others knew before this sidecar started."""
        for _ in range(await self._checkpoints.read(stream)):
            self._metrics.unreadable()
        more = True
        while more:
            entries, more = await stream.exchange(None)
            self._receive(entries)
            await asyncio.sleep(0)

    def _connected(self) -> None:
        if not self._is_connected:
            self._is_connected = True
            self._synced.set()
            log.info(
                "shared state connected",
                extra=fields(server=str(self._server), peers=len(self._peers)),
            )

    async def _exchange(self, stream: BatchStream) -> None:
        """Write what happened here, and apply what happened elsewhere."""
        now = self._clock()
        is_held_due = now >= self._held_at + HELD_SECONDS
        if is_held_due:
            await stream.set_clock()
            if self._peers.is_first():
                await self._checkpoints.write_some(stream)
        if self._unwritten is not None and now > self._unwritten.taken_at + SILENT_SECONDS:
            # Its times and its requests in flight are too old. Peers have forgotten this sidecar,
            # so it is replaced by a batch with all requests in flight, which is due by now.
            self._unwritten = None
            self._journal.put_back()
        if self._unwritten is None and (is_held_due or not self._journal.is_empty):
            if not self._journal.is_empty:
                self._active_at = now
            message = encode_batch(self._journal.take(held=is_held_due))
            self._unwritten = _Unwritten(message, now, is_held_due)
        unwritten = self._unwritten
        entries, _ = await stream.exchange(unwritten.message if unwritten else None)
        if unwritten is not None:
            self._metrics.sent(len(unwritten.message))
            self._unwritten = None
            if unwritten.has_held:
                self._held_at = unwritten.taken_at
        self._position = stream.last
        self._receive(entries)
        self._peers.expire()

    def _receive(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._metrics.received(len(entry.message))
            try:
                batch = decode_batch(entry.message)
                self._peers.receive(batch, entry.age)
            except (UnreadableError, IndexError):
                self._metrics.unreadable()
                continue
            if batch.sent and self._is_connected:
                lag = entry.age + batch.sent[0][SENT_AGO]
                self._metrics.lag.observe(lag)
                self._lag += _LAG_WEIGHT * (lag - self._lag) if self._lag else lag
            if batch.sent or batch.ended:
                self._active_at = self._clock()

    async def _pause(self) -> None:
        """Wait for the next exchange. A request ends the longer wait of an idle sidecar."""
        if self._clock() < self._active_at + HELD_SECONDS:
            await asyncio.sleep(INTERVAL_SECONDS)
        else:
            await self._wait(IDLE_INTERVAL_SECONDS)

    async def _wait(self, seconds: float) -> None:
        """Wait, but no longer than until a request or the end."""
        self._woken.clear()
        if self._closing.is_set():
            return
        alarm = asyncio.get_running_loop().call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()
