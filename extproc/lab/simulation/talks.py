"""Open sessions of a client: their next requests, and the forks that they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from extproc.lab.workloads.workload import Session, Turn, family


class Ask(NamedTuple):
    """A request that the client sends."""

    number: int
    turn: Turn


class Talk:
    """An open session."""

    __slots__ = ("_children", "_next", "_turns", "first", "is_awaited", "parent", "waits", "wanted")

    def __init__(
        self, session: Session, first: int, parent: Talk | None = None, is_awaited: bool = False
    ) -> None:
        self.first = first
        """Number of its first request. Those of its forks follow its own."""
        self.parent = parent
        self.is_awaited = is_awaited
        """True if its parent waits for its end."""
        self.wanted = session.start
        """Time at which its next request is due."""
        self.waits = 0
        """Number of forks whose end its next request waits for."""
        self._turns = session.turns
        self._next = 0
        self._children: list[tuple[int, Talk]] = []
        first += len(session.turns)
        for fork in session.forks:
            self._children.append((fork.after, Talk(fork.session, first, self, fork.is_awaited)))
            first += sum(len(one.turns) for one in family(fork.session))

    @property
    def next(self) -> Turn | None:
        """The next turn; None after the last."""
        return self._turns[self._next] if self._next < len(self._turns) else None

    @property
    def size(self) -> int:
        """Number of sessions: this one, and its forks that have not started, with theirs."""
        return 1 + sum(child.size for _, child in self._children)

    def ask(self) -> Ask:
        """Return the next request."""
        ask = Ask(self.first + self._next, self._turns[self._next])
        self._next += 1
        return ask

    def fork(self) -> list[Talk]:
        """Start the forks of the last asked turn, and wait for those that are awaited."""
        turn = self._next - 1
        started = [child for after, child in self._children if after == turn]
        self._children = [one for one in self._children if one[0] != turn]
        self.waits = sum(child.is_awaited for child in started)
        return started


def talks(sessions: Iterator[Session]) -> Iterator[Talk]:
    """Open the sessions one after the other, and number their requests."""
    first = 0
    for session in sessions:
        yield Talk(session, first)
        first += sum(len(one.turns) for one in family(session))
