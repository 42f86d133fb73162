"""The benchmark behind KubeAI's published tables, as its script is coded.

The script is vLLM's benchmark_serving.py with three changes. Theory of operation: a conversation
of at least 16 messages gives a prompt for each message of its user, made of all messages up to
there, and the length of the answer is that of the message which follows. All prompts of
all conversations, in order, are cut to the first 800, shuffled once and gone through
again and again until there are 8,000 requests; on the way those that are too short, too long or
have no answer are left out. `--max-conversations 800` is that cut: it counts prompts, so some 73
conversations remain, and every request comes ten or eleven times.

Published are the totals and the averages; the lengths of single messages are drawn and fitted to
them. The averages mean short messages: the data set, ShareGPT in pieces of at
most 2,048 tokens, leaves little room for each of 16. That they are also of rather equal length, and
that the engines had seen the prompts before, is inferred: the published runs end within seconds of
their last request, and the first answers of PrefixHash are not late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, cycle, islice
from random import Random
from typing import NamedTuple

from extproc.lab.workloads.lengths import fit, log_normal, shares
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

REQUESTS_PER_SECOND = {800: 800.0, 1_600: 200.0, 3_200: 200.0, 8_000: 800.0}
"""By the published runs' concurrency: they are not one sweep."""

_MAX_CONVERSATIONS = 800
_REQUESTS = 8_000
_PROMPT_TOKENS = 6_656_338
_OUTPUT_TOKENS = 608_447

_LEAST_TOKENS = 4
_MOST_PROMPT_TOKENS = 8_192

_MARKERS = 3
"""Tokens of "User: " or "Assistant: " and the line's end around each message."""


def kubeai_chat(
    concurrency: int, seed: int = 0, pace: float = 1.0, real_conversations: bool = False
) -> Workload:
    """8,000 requests, each a session of its own, in the order of the shuffle.

    `real_conversations` is the benchmark as it is documented instead: the prompts of so
    many conversations (some 730) that each comes once. Tokens are the same in all.
    """
    rng = Random(f"kubeai-chat/{seed}")
    dataset = _Dataset(rng)
    everything = dataset.prompts()
    if real_conversations:
        prompts = list(islice(filter(dataset.keeps, everything), _REQUESTS))
    else:
        prompts = list(islice(everything, _MAX_CONVERSATIONS))
    rng.shuffle(prompts)
    requests = list(islice(cycle(filter(dataset.keeps, prompts)), _REQUESTS))
    dataset.fit(Counter(requests))
    sessions = {prompt: Session((dataset.turn(prompt),)) for prompt in dict.fromkeys(requests)}
    # The runs of a page followed one another on the same engines with the same prompts.
    before = [] if real_conversations else list(sessions.values())
    return Workload(
        name=f"kubeai-chat-{concurrency}" + ("-real" if real_conversations else ""),
        sessions=[*before, *(sessions[prompt] for prompt in requests)],
        warm_up=len(before),
        concurrency=concurrency,
        requests_per_second=REQUESTS_PER_SECOND[concurrency] * pace,
        api="completions",
        single_threaded_client=True,
    )


class _Prompt(NamedTuple):
    conversation: int
    messages: int
    """The conversation's first so many; an odd number."""


class _Dataset:
    """Conversations: the tokens of their messages, less the markers; the user's come first."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._conversations: list[list[int]] = []

    def prompts(self) -> Iterator[_Prompt]:
        """Of one conversation after the other, without an end."""
        while True:
            number = len(self._conversations)
            self._conversations.append(_conversation(self._rng))
            for messages in range(1, len(self._conversations[number]) + 1, 2):
                yield _Prompt(number, messages)

    def keeps(self, prompt: _Prompt) -> bool:
        """Whether the script sends it."""
        length = sum(self._prompt(prompt)) + _MARKERS * prompt.messages
        enough = min(length, self._answer(prompt)) >= _LEAST_TOKENS
        return enough and length <= _MOST_PROMPT_TOKENS

    def fit(self, times: Counter[_Prompt]) -> None:
        """Makes the totals exact, if each prompt is sent so often. Too short answers stay so."""
        prompts = sorted(times)
        answers = [self._answer(prompt) for prompt in prompts]
        counts = [times[prompt] for prompt in prompts]
        for prompt, tokens in zip(
            prompts, fit(answers, counts, _OUTPUT_TOKENS, _LEAST_TOKENS), strict=True
        ):
            self._conversations[prompt.conversation][prompt.messages] = tokens
        self._fit_users(times)

    def _fit_users(self, times: Counter[_Prompt]) -> None:
        places: list[tuple[int, int]] = []
        counts: list[int] = []
        rest = _PROMPT_TOKENS
        for number, messages in enumerate(self._conversations):
            for place, count in _counts(number, len(messages), times).items():
                rest -= count * _MARKERS
                if place % 2:
                    rest -= count * messages[place]
                else:
                    places.append((number, place))
                    counts.append(count)
        drawn = [self._conversations[number][place] for number, place in places]
        for (number, place), tokens in zip(places, fit(drawn, counts, rest), strict=True):
            self._conversations[number][place] = tokens

    def turn(self, prompt: _Prompt) -> Turn:
        """What the model answers is not what the data set says next, but always the same."""
        name = f"sharegpt/{prompt.conversation}"
        messages = tuple(
            Segment(f"{name}/{place}", tokens + _MARKERS, "assistant" if place % 2 else "user")
            for place, tokens in enumerate(self._prompt(prompt))
        )
        answer = Segment(f"{name}/{prompt.messages}/answer", self._answer(prompt), "assistant")
        return Turn(messages, answer)

    def _prompt(self, prompt: _Prompt) -> list[int]:
        return self._conversations[prompt.conversation][: prompt.messages]

    def _answer(self, prompt: _Prompt) -> int:
        messages = self._conversations[prompt.conversation]
        return messages[prompt.messages] if prompt.messages < len(messages) else 0


def _counts(conversation: int, messages: int, times: Counter[_Prompt]) -> dict[int, int]:
    """How often each message is sent: as often as all prompts that reach to it."""
    asked = [times[_Prompt(conversation, place + 1)] for place in range(messages)]
    from_here = list(accumulate(reversed(asked)))[::-1]
    return {place: count for place, count in enumerate(from_here) if count}


def _conversation(rng: Random) -> list[int]:
    """16 messages and more, 22 on average, of 2,048 tokens at most together.

    Fitting the published totals moves some past that by a few percent. Parameters are such
    that it leaves lengths as they are on average, and that some 70 conversations make 800 prompts.
    """
    messages = 16 + 2 * log_normal(rng, mean=3.2, sigma=1.2, least=0, most=60)
    # The user has the last word in some: their last prompt has no answer.
    if messages > 16 and rng.random() < 0.15:
        messages -= 1
    # Where there are more messages there is more text, up to the data set's limit.
    tokens = log_normal(rng, 115.0 * messages, 0.6, least=8 * messages, most=2_048)
    weights = [1.25 if place % 2 else 1.0 for place in range(messages)]
    return shares(rng, tokens - _MARKERS * messages, weights, sigma=0.4)
