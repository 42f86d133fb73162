"""Threads of user messages, as two of KubeAI's load generators send them.

A thread is a conversation with only the user's messages given. Each turn sends all messages so far,
with the model's own responses. Published are the numbers of threads, requests and tokens. Lengths
are drawn and then fitted to these totals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from random import Random

from extproc.lab.workloads.lengths import fit, geometric, shares
from extproc.lab.workloads.workload import Session, conversation

_MARKERS = 10
"""Tokens around a message and its response in Llama 3's chat template.

They are part of the published prompt tokens.
"""

_SPREAD = 0.8
"""Sigma of the logarithm of a thread's messages. Assumed."""


@dataclass(frozen=True)
class Threads:
    """Known properties of a run's threads."""

    name: str
    threads: int
    requests: int
    prompt_tokens: int
    output_tokens: int

    max_tokens: int
    """Tokens of a response; nearly all responses have this many."""

    least_messages: int
    most_messages: int
    """Most user messages in a thread."""

    user_tokens: Callable[[Random], int]
    """Draws the total length of a thread's messages."""

    def sessions(self, seed: int) -> list[Session]:
        """Return the threads in order, a session each, with exact totals of requests and tokens."""
        rng = Random(f"{self.name}/{seed}")
        sizes = self._sizes(rng)
        # The number of times that each turn's message or response is sent, thread by thread.
        later = [size - turn for size in sizes for turn in range(size)]
        answers = self._answers(rng)
        repeated = sum((times - 1) * answer for times, answer in zip(later, answers, strict=True))
        messages = iter(
            fit(
                self._messages(rng, sizes),
                later,
                self.prompt_tokens - repeated,
                least=_MARKERS + 1,
            )
        )
        rest = iter(answers)
        return [
            Session(
                conversation(
                    f"{self.name}/{number}",
                    (),
                    list(islice(messages, size)),
                    list(islice(rest, size)),
                )
            )
            for number, size in enumerate(sizes)
        ]

    def _sizes(self, rng: Random) -> list[int]:
        least, most = self.least_messages, self.most_messages
        mean = self.requests / self.threads - least
        drawn = [least + geometric(rng, mean, most - least) for _ in range(self.threads)]
        return fit(drawn, [1] * self.threads, self.requests, least, most)

    def _answers(self, rng: Random) -> list[int]:
        most = self.max_tokens
        # A response that ends early does so at any length equally, so half of it is missing.
        missing = self.requests * most - self.output_tokens
        short = rng.sample(range(self.requests), round(missing / (most / 2)))
        drawn = [rng.randint(1, most - 1) for _ in short]
        rest = most * len(short) - missing
        answers = [most] * self.requests
        for place, tokens in zip(
            short, fit(drawn, [1] * len(short), rest, most=most - 1), strict=True
        ):
            answers[place] = tokens
        return answers

    def _messages(self, rng: Random, sizes: list[int]) -> list[int]:
        return [
            part + _MARKERS
            for size in sizes
            for part in shares(rng, self.user_tokens(rng), [1.0] * size, _SPREAD)
        ]
