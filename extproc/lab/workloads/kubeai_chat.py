"""The benchmark of KubeAI's published tables, as its script is coded.

The script is vLLM's benchmark_serving.py with three changes. A conversation of at least 16 messages
gives a prompt for each of its user messages, with all messages up to there. The next message
determines the length of the response. The script cuts the list of all prompts to the first 800,
shuffles it once and repeats it until there are 8,000 requests. It leaves out prompts that are too
short, too long or without a response. `--max-conversations 800` is that cut: it counts prompts, so
some 73 conversations remain, and every request comes ten or eleven times.

The totals and averages are published; the lengths of messages are drawn and fitted to them. The
averages imply short messages: the data set, ShareGPT in pieces of at most 2,048 tokens, leaves
little room for 16 of them. Two facts are inferred: messages have similar lengths, and the engines
had seen the prompts before. The published runs end within seconds of their last request, and the
first responses of PrefixHash are not late.
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
"""Requests a second by the concurrency of the published runs. They are not one sweep."""

_MAX_CONVERSATIONS = 800
_REQUESTS = 8_000
_PROMPT_TOKENS = 6_656_338
_OUTPUT_TOKENS = 608_447

_LEAST_TOKENS = 4
_MOST_PROMPT_TOKENS = 8_192

_MARKERS = 3
"""Tokens of "User: " or "Assistant: " and the line end around each message."""


def kubeai_chat(
    concurrency: int, seed: int = 0, pace: float = 1.0, real_conversations: bool = False
) -> Workload:
    """Return 8,000 requests in shuffled order, each a separate session.

    With `real_conversations`, it is the benchmark as documented: the prompts of some 730
    conversations, each sent once. The total of tokens is the same.
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
    """Number of the conversation's first messages; odd."""


class _Dataset:
    """Conversations as tokens of their messages, without markers; the user's come first."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._conversations: list[list[int]] = []

    def prompts(self) -> Iterator[_Prompt]:
        """Return the prompts of one conversation after another, endlessly."""
        while True:
            number = len(self._conversations)
            self._conversations.append(_conversation(self._rng))
            for messages in range(1, len(self._conversations[number]) + 1, 2):
                yield _Prompt(number, messages)

    def keeps(self, prompt: _Prompt) -> bool:
        """True if the script sends the prompt."""
        length = sum(self._prompt(prompt)) + _MARKERS * prompt.messages
        enough = min(length, self._answer(prompt)) >= _LEAST_TOKENS
        return enough and length <= _MOST_PROMPT_TOKENS

    def fit(self, times: Counter[_Prompt]) -> None:
        """Make the totals exact for the given counts. Responses that are too short stay so."""
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
        """Return a turn. The model's response is not the data set's next message, but always the
        same.
        """
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
    """Return for each message the number of prompts that contain it."""
    asked = [times[_Prompt(conversation, place + 1)] for place in range(messages)]
    from_here = list(accumulate(reversed(asked)))[::-1]
    return {place: count for place, count in enumerate(from_here) if count}


def _conversation(rng: Random) -> list[int]:
    """Return a conversation of at least 16 messages, 22 on average, with at most 2,048 tokens.

    Fitting the published totals moves some past that by a few percent. The parameters keep the
    average lengths, and some 70 conversations give 800 prompts.
    """
    messages = 16 + 2 * log_normal(rng, mean=3.2, sigma=1.2, least=0, most=60)
    # Some conversations end with the user: their last prompt has no response.
    if messages > 16 and rng.random() < 0.15:
        messages -= 1
    # More messages have more text, up to the data set's limit.
    tokens = log_normal(rng, 115.0 * messages, 0.6, least=8 * messages, most=2_048)
    weights = [1.25 if place % 2 else 1.0 for place in range(messages)]
    return shares(rng, tokens - _MARKERS * messages, weights, sigma=0.4)
