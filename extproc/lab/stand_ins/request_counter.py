"""The true numbers of requests at a stand-in, to compare a router's counts with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


class RequestCounter:
    """Counts of requests in flight, aborted and completed; `total` is their sum."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.aborted = 0
        self.completed = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count one request during a `with` block.

        An exception other than an HTTP response means that the client has disconnected.
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
        """Return all four numbers."""
        total = self.in_flight + self.aborted + self.completed
        return {
            "in_flight": self.in_flight,
            "total": total,
            "aborted": self.aborted,
            "completed": self.completed,
        }

    def reset(self) -> None:
        """Reset the counts of requests that have ended."""
        self.aborted = 0
        self.completed = 0
