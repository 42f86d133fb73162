"""The endpoint where each turn of a conversation was sent.

It probably has the turn's response in its prefix cache, too, which is a part of the next turn's
prompt. The blocks of `extproc.core.fleet.prefix_index` do not show where it is: the sidecar sees
responses only as parts of later prompts, and short turns end before the next block does. So a turn
is known by the hash of its whole prompt.

Sessions that begin with the same prompt have the same first turn. If it went to several endpoints,
it does not show where a session is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from extproc.core.fleet.prefix_index import PrefixIndex

MOST_TURNS = 50_000
"""Latest turns of all endpoints together that are known."""


class _Turn(NamedTuple):
    """A turn that was sent to an endpoint."""

    address: str
    """Empty if it was sent to several endpoints."""

    life: int
    """Number of the endpoint's life: after a restart its cache is empty."""

    at: float
    """When it was sent."""

    tokens: float
    """Tokens of turns that the endpoint had in this life up to this one, without cached ones."""


_SEVERAL: Final = _Turn("", 0, 0.0, 0.0)


class _Life:
    """An endpoint between two restarts."""

    __slots__ = ("number", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = 0.0


class Turns:
    """Turns of conversations, by the hash of their prompts."""

    def __init__(
        self, clock: Callable[[], float], prefixes: PrefixIndex, response_tokens: float
    ) -> None:
        """`response_tokens` are those that a response is expected to have."""
        self._clock = clock
        self._response_tokens = response_tokens
        self._prefixes = prefixes
        self._turns: OrderedDict[int, _Turn] = OrderedDict()
        self._lives: dict[str, _Life] = {}
        self._began = 0

    def sent(self, address: str, turn: int, to_compute: float) -> None:
        """Record that a turn was sent to an endpoint, with so many tokens to compute."""
        before = self.endpoint_of(turn)
        is_in_several = self._turns.get(turn) is _SEVERAL or before not in (None, address)
        life = self._lives.get(address)
        if life is None:
            self._began += 1
            life = self._lives[address] = _Life(self._began)
        life.tokens += to_compute + self._response_tokens
        now = self._clock()
        self._turns[turn] = (
            _SEVERAL if is_in_several else _Turn(address, life.number, now, life.tokens)
        )
        self._turns.move_to_end(turn)
        if len(self._turns) > MOST_TURNS:
            self._turns.popitem(last=False)

    def failed(self, address: str, turn: int) -> None:
        """Record that an endpoint did not serve a turn that was sent to it."""
        found = self._turns.get(turn)
        if found is not None and found.address == address:
            del self._turns[turn]

    def endpoint_of(self, turn: int) -> str | None:
        """Return the address of the endpoint with a turn in its cache; None if unknown."""
        found = self._turns.get(turn)
        if found is None:
            return None
        life = self._lives.get(found.address)
        if life is None or life.number != found.life or self._is_evicted(found, life):
            return None
        return found.address

    def forget(self, address: str) -> None:
        """Forget the turns of an endpoint that left or restarted."""
        self._lives.pop(address, None)

    def _is_evicted(self, turn: _Turn, life: _Life) -> bool:
        """Return True if the endpoint's cache has had to make room for later tokens."""
        if life.tokens - turn.tokens > self._prefixes.room(turn.address):
            return True
        age = self._prefixes.age(turn.address)
        return age is not None and self._clock() - turn.at > age
