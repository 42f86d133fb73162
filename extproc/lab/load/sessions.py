"""Drives the sessions of one process: turn after turn, with responses added to later prompts."""

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
"""Pause after a failed request, because people and agents do not retry at once. Without it, a
closed loop would use up all sessions during a short outage."""


class Driver:
    """Driver of one phase, which begins at `begin` on the monotonic clock."""

    def __init__(self, phase: Phase, style: BodyOptions, pool: Pool, begin: float) -> None:
        self._phase = phase
        self._style = style
        self._pool = pool
        self._begin = begin
        self.records = Records(begin)
        self.in_flight = 0

    async def run(self) -> None:
        """Run all sessions of the phase."""
        sessions = iter(self._phase.sessions)
        async with asyncio.TaskGroup() as slots:
            for _ in range(self._phase.slots):
                slots.create_task(self._run_slot(sessions))

    async def _run_slot(self, sessions: Iterator[ScheduledSession]) -> None:
        """Run one session after another; all slots take from one iterator, in order."""
        free_at = self._begin
        for due in sessions:
            await _until(self._begin + due.start)
            # In a closed loop, a session is due when a slot is free.
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
        # A cancelled request stays counted: it is in flight at the end of the run.
        self.in_flight -= 1
        return exchange

    async def _ended(self, exchange: Exchange) -> float:
        """Return the time at which the session continues; pause after a failure."""
        if exchange.failure is None:
            return exchange.answer.last
        await asyncio.sleep(PAUSE_SECONDS)
        return monotonic()


async def _until(time: float) -> None:
    seconds = time - monotonic()
    if seconds > 0:
        await asyncio.sleep(seconds)
