"""Tenants that send unrelated requests at random times, for flow control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

_SPREAD = 0.25
"""Standard deviation of lengths, as a share of their mean."""
_LEAST_TOKENS = 4


@dataclass(frozen=True)
class Crowd:
    """The requests of one tenant, with normally distributed lengths."""

    name: str
    per_second: float
    """Mean requests per second, of a Poisson process."""
    prompt_tokens: int = 500
    output_tokens: int = 150
    objective: str = ""
    """Priority class."""

    def sessions(self, seconds: float) -> Iterator[Session]:
        """Yield its requests in that time, each a session."""
        rng = Random(f"crowd {self.name}")
        start = rng.expovariate(self.per_second)
        number = 0
        while start < seconds:
            prompt = Segment(f"{self.name} {number}", _length(rng, self.prompt_tokens))
            output = _length(rng, self.output_tokens)
            response = Segment(f"{self.name} {number} response", output, "assistant")
            turn = Turn((prompt,), response, tenant=self.name, objective=self.objective)
            yield Session((turn,), start)
            number += 1
            start += rng.expovariate(self.per_second)


def crowds(those: Sequence[Crowd], seconds: float, profile: str) -> Workload:
    """Return the workload of several tenants."""
    sessions = [session for crowd in those for session in crowd.sessions(seconds)]
    sessions.sort(key=lambda session: session.start)
    return Workload(" and ".join(one.name for one in those), sessions, profile=profile)


def _length(rng: Random, mean: int) -> int:
    return max(_LEAST_TOKENS, round(rng.gauss(mean, _SPREAD * mean)))
