"""The endpoint where each turn of a conversation was sent last.

It has the turn's response in its prefix cache, too, which is a part of the next turn's prompt. The
blocks of `extproc.core.fleet.prefix_index` do not show where it is: the sidecar sees responses only
as parts of later prompts, and short turns end before the next block does. So a turn is known by the
hash of its whole prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from extproc.core.fleet.prefix_index import PrefixIndex

MOST_TURNS = 50_000
"""Latest turns of all endpoints together that are known."""


class _Turn(NamedTuple):
    """A turn that was sent to an endpoint."""

    address: str
    life: int
    """Number of the endpoint's life: after a restart its cache is empty."""
    at: float


class Turns:
    """Turns of conversations, by the hash of their prompts."""

    def __init__(self, clock: Callable[[], float], prefixes: PrefixIndex) -> None:
        self._clock = clock
        self._prefixes = prefixes
        self._turns: OrderedDict[int, _Turn] = OrderedDict()
        self._lives: dict[str, int] = {}
        self._began = 0

    def sent(self, address: str, turn: int) -> None:
        """Record that a turn was sent to an endpoint."""
        life = self._lives.get(address)
        if life is None:
            self._began += 1
            life = self._lives[address] = self._began
        self._turns[turn] = _Turn(address, life, self._clock())
        self._turns.move_to_end(turn)
        if len(self._turns) > MOST_TURNS:
            self._turns.popitem(last=False)

    def endpoint_of(self, turn: int) -> str | None:
        """Return the address of the endpoint with a turn in its cache; None if there is none."""
        found = self._turns.get(turn)
        if found is None or self._lives.get(found.address) != found.life:
            return None
        age = self._prefixes.age(found.address)
        if age is not None and self._clock() - found.at > age:
            return None  # it has been evicted
        return found.address

    def forget(self, address: str) -> None:
        """Forget the turns of an endpoint that left or restarted."""
        self._lives.pop(address, None)
