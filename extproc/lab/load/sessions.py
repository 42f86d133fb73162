"""Drives the sessions of one process: places, turns one after the other, answers appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic

from extproc.lab.load.bodies import BodyOptions, body, quoted_later
from extproc.lab.load.exchange import Exchange
from extproc.lab.load.pool import Pool
from extproc.lab.load.records import Records
from extproc.lab.load.response import Response
from extproc.lab.load.shares import Phase, ScheduledSession

PAUSE_SECONDS = 1.0
"""After a request that failed. People and agents do not try again at once; without it, a closed
loop would spend all its sessions on an outage of a second."""


class Driver:
    """Runs a phase; `begin` is its beginning on the monotonic clock."""

    def __init__(self, phase: Phase, style: BodyOptions, pool: Pool, begin: float) -> None:
        self._phase = phase
        self._style = style
        self._pool = pool
        self._begin = begin
        self.records = Records(begin)
        self.in_flight = 0

    async def run(self) -> None:
        """Until all is asked and answered."""
        sessions = iter(self._phase.sessions)
        async with asyncio.TaskGroup() as places:
            for _ in range(self._phase.places):
                places.create_task(self._place(sessions))

    async def _place(self, sessions: Iterator[ScheduledSession]) -> None:
        """One session after the other. All places draw from one row, so they start in order."""
        free_at = self._begin
        for due in sessions:
            await _until(self._begin + due.start)
            # A session of no time of its own is due when there is a place for it.
            await self._session(due, free_at if self._phase.is_closed else self._begin + due.start)
            free_at = monotonic()

    async def _session(self, due: ScheduledSession, wanted: float) -> None:
        turns = list(due.session.turns)
        quoted = quoted_later(turns)
        said: dict[str, str] = {}
        for number, turn in enumerate(turns):
            if number:
                wanted += turn.think_seconds
                await _until(wanted)
            answer = Response(self._style.api, turn.output.name in quoted)
            exchange = await self._ask(partial(body, turn, said, self._style), answer)
            self.records.add(turn, wanted, exchange)
            wanted = await self._ended(exchange)
            if answer.keep and exchange.failure is None:
                said[turn.output.name] = answer.text()

    async def _ask(self, make_body: Callable[[], bytes], answer: Response) -> Exchange:
        exchange = Exchange(answer, asyncio.get_running_loop().create_future())
        self.in_flight += 1
        await self._pool.ask(make_body, exchange)
        # Not where it is cancelled: it is in flight then, and stays so.
        self.in_flight -= 1
        return exchange

    async def _ended(self, exchange: Exchange) -> float:
        """When the client knew; of a failure it has to get over first."""
        if exchange.failure is None:
            return exchange.answer.last
        await asyncio.sleep(PAUSE_SECONDS)
        return monotonic()


async def _until(time: float) -> None:
    seconds = time - monotonic()
    if seconds > 0:
        await asyncio.sleep(seconds)
