"""How many requests a stand-in holds and held: the truth to compare a router's counts with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


class RequestCounter:
    """At any moment total = in_flight + aborted + completed."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.aborted = 0
        self.completed = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """TokenCounts one request, from here to the end of the block.

        Leaving it by an exception other than an HTTP answer means that the client has gone.
        """
        self.in_flight += 1
        try:
            yield
        except web.HTTPException:
            self.completed += 1
            raise
        except BaseException:
            self.aborted += 1
            raise
        else:
            self.completed += 1
        finally:
            self.in_flight -= 1

    def counts(self) -> dict[str, int]:
        """All four numbers."""
        total = self.in_flight + self.aborted + self.completed
        return {
            "in_flight": self.in_flight,
            "total": total,
            "aborted": self.aborted,
            "completed": self.completed,
        }

    def reset(self) -> None:
        """Forgets what is over."""
        self.aborted = 0
        self.completed = 0
