"""KubeAI's chat benchmark: the published totals, and effects of the script's details."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from extproc.lab.workloads.kubeai_chat import kubeai_chat
from extproc.lab.workloads.workload import Turn, Workload

SEEDS = range(4)


def turns(workload: Workload) -> list[Turn]:
    return [turn for session in workload.sessions for turn in session.turns]


def hit_rate(workload: Workload, replicas: int) -> float:
    """Return the hit rate with unlimited caches and a random replica for each request."""
    rng = Random(1)
    seen: list[set[str]] = [set() for _ in range(replicas)]
    found = 0
    for turn in turns(workload):
        cache = rng.choice(seen)
        # Every message belongs to one conversation, so the cached messages are a prefix.
        found += sum(message.tokens for message in turn.prompt if message.name in cache)
        cache.update(message.name for message in turn.prompt)
    return 100 * found / workload.prompt_tokens


@pytest.fixture(scope="module")
def coded() -> Workload:
    return kubeai_chat(8_000).measured


class TestTotals:
    @pytest.mark.parametrize("real", [False, True])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_match_the_published_ones_exactly(self, seed: int, real: bool) -> None:
        workload = kubeai_chat(800, seed, real_conversations=real).measured
        assert workload.requests == 8_000
        assert workload.prompt_tokens == 6_656_338
        assert workload.output_tokens == 608_447


class TestPrompts:
    def test_each_adds_a_response_and_a_question(self, coded: Workload) -> None:
        for turn in set(turns(coded)):
            roles = [message.role for message in turn.prompt]
            assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]

    def test_those_of_a_conversation_share_prefixes(self, coded: Workload) -> None:
        by_length = sorted(set(turns(coded)), key=lambda turn: len(turn.prompt))
        longest = {turn.prompt[0].name: turn.prompt for turn in by_length}
        for turn in by_length:
            assert turn.prompt == longest[turn.prompt[0].name][: len(turn.prompt)]

    def test_800_come_from_some_70_conversations_of_at_least_16_messages(
        self, coded: Workload
    ) -> None:
        asked = Counter(turn.prompt[0].name for turn in set(turns(coded)))
        assert 60 <= len(asked) <= 80
        # The last conversation is cut, and a few prompts have no response.
        assert sorted(asked.values())[1] >= 7

    def test_responses_have_the_next_messages_length_but_not_its_text(
        self, coded: Workload
    ) -> None:
        messages = {message.name: message for turn in turns(coded) for message in turn.prompt}
        for turn in set(turns(coded)):
            conversation, _, place = turn.prompt[-1].name.rpartition("/")
            follows = messages.get(f"{conversation}/{int(place) + 1}")
            assert turn.output.name not in messages
            if follows is not None:
                # Words around a message in a prompt name its author.
                assert turn.output.tokens == follows.tokens - 3

    def test_prompts_that_the_script_leaves_out_are_not_sent(self, coded: Workload) -> None:
        assert all(4 <= turn.prompt_tokens <= 8_192 for turn in turns(coded))
        assert all(turn.output.tokens >= 4 for turn in turns(coded))


class TestOrder:
    def test_prompts_are_shuffled_once_and_repeated(self, coded: Workload) -> None:
        asked = turns(coded)
        distinct = len(set(asked))
        assert 760 <= distinct < 800
        assert len(set(asked[:distinct])) == distinct
        assert all(asked[n] == asked[n % distinct] for n in range(len(asked)))

    def test_the_shuffle_separates_the_prompts_of_a_conversation(self, coded: Workload) -> None:
        names = [turn.prompt[0].name for turn in turns(coded)[:700]]
        assert sum(a == b for a, b in pairwise(names)) < 35

    def test_the_seed_determines_the_order(self, coded: Workload) -> None:
        assert kubeai_chat(8_000).measured.sessions == coded.sessions
        assert kubeai_chat(8_000, seed=1).measured.sessions != coded.sessions


class TestWarmUp:
    """The runs of the published page follow one another on the same engines."""

    def test_sends_each_prompt_once(self, coded: Workload) -> None:
        before = kubeai_chat(8_000).before
        assert Counter(turns(before)) == dict.fromkeys(turns(coded), 1)

    def test_is_empty_if_prompts_do_not_repeat(self) -> None:
        assert not kubeai_chat(8_000, real_conversations=True).before.sessions


class TestAsDocumented:
    def test_some_730_conversations_send_each_prompt_once(self) -> None:
        asked = turns(kubeai_chat(800, real_conversations=True))
        assert len(set(asked)) == 8_000
        assert 690 <= len({turn.prompt[0].name for turn in asked}) <= 770


class TestHitRates:
    """Hit rates of unlimited caches, calculated from the published script."""

    @pytest.mark.parametrize("seed", SEEDS)
    def test_as_coded(self, seed: int) -> None:
        workload = kubeai_chat(800, seed).measured
        assert hit_rate(workload, 1) == pytest.approx(98, abs=2)
        assert hit_rate(workload, 8) == pytest.approx(88, abs=2)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_as_documented(self, seed: int) -> None:
        workload = kubeai_chat(800, seed, real_conversations=True)
        assert hit_rate(workload, 1) == pytest.approx(83, abs=4)
        assert hit_rate(workload, 8) == pytest.approx(35, abs=4)


class TestClient:
    @pytest.mark.parametrize(
        ("concurrency", "rate"), [(800, 800), (1_600, 200), (3_200, 200), (8_000, 800)]
    )
    def test_rates_are_the_published_ones(self, concurrency: int, rate: int) -> None:
        workload = kubeai_chat(concurrency)
        assert (workload.concurrency, workload.requests_per_second) == (concurrency, rate)

    def test_is_the_python_script_that_could_not_keep_up(self, coded: Workload) -> None:
        assert coded.single_threaded_client
        assert (coded.api, coded.replicas) == ("completions", 8)
        assert all(len(session.turns) == 1 for session in coded.sessions)
