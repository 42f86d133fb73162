"""KubeAI's two benchmarks with threads: published totals, and growing conversations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from extproc.lab.workloads.blog import blog_2xl4, blog_8xh100
from extproc.lab.workloads.kubeai_threads import kubeai_threads
from extproc.lab.workloads.workload import Session, Workload


@pytest.fixture(scope="module")
def threads() -> Workload:
    return kubeai_threads(1_200)


@pytest.fixture(scope="module")
def blog() -> Workload:
    return blog_2xl4()


def grows(session: Session) -> bool:
    """True if each turn is the previous one, its response, and one more message."""
    return all(
        after.prompt[:-1] == (*before.prompt, before.output)
        for before, after in pairwise(session.turns)
    )


def user_tokens(session: Session) -> int:
    return sum(turn.prompt[-1].tokens - 10 for turn in session.turns)


class TestMultiTurn:
    def test_totals_are_those_of_the_published_run(self, threads: Workload) -> None:
        assert len(threads.sessions) == 8_000
        assert threads.requests == 59_031
        assert threads.prompt_tokens == 22_793_327
        assert threads.output_tokens == 2_294_703

    def test_each_turn_sends_the_whole_conversation(self, threads: Workload) -> None:
        assert all(grows(session) for session in threads.sessions)

    def test_threads_have_5_to_30_messages(self, threads: Workload) -> None:
        sizes = {len(session.turns) for session in threads.sessions}
        assert (min(sizes), max(sizes)) == (5, 30)

    def test_threads_have_about_500_to_3000_characters_of_the_user(self, threads: Workload) -> None:
        texts = [4 * user_tokens(session) for session in threads.sessions]
        assert min(texts) >= 0.9 * 500
        assert max(texts) <= 1.1 * 3_000

    def test_nearly_all_responses_have_the_allowed_40_tokens(self, threads: Workload) -> None:
        answers = [turn.output.tokens for session in threads.sessions for turn in session.turns]
        assert max(answers) == 40
        assert answers.count(40) / len(answers) == pytest.approx(0.94, abs=0.01)

    def test_threads_share_nothing(self, threads: Workload) -> None:
        first = {session.turns[0].prompt[0].name for session in threads.sessions}
        assert len(first) == 8_000

    def test_is_a_closed_loop_of_chats(self, threads: Workload) -> None:
        assert (threads.concurrency, threads.requests_per_second) == (1_200, None)
        assert (threads.api, threads.replicas) == ("chat", 8)
        assert not threads.single_threaded_client

    def test_the_same_seed_gives_the_same_threads(self, threads: Workload) -> None:
        assert kubeai_threads(300).sessions == threads.sessions

    def test_another_seed_has_the_same_totals(self, threads: Workload) -> None:
        other = kubeai_threads(1_200, seed=5)
        assert other.sessions != threads.sessions
        assert (other.requests, other.prompt_tokens) == (59_031, 22_793_327)


class TestPost:
    @pytest.mark.parametrize(
        ("build", "prompt_tokens", "output_tokens"),
        [(blog_2xl4, 4_990_223, 68_062), (blog_8xh100, 4_990_249, 67_790)],
    )
    def test_the_measured_half_has_the_published_totals(
        self, build: Callable[[], Workload], prompt_tokens: int, output_tokens: int
    ) -> None:
        workload = build()
        measured = workload.measured
        assert len(measured.sessions) == 1_000
        assert measured.requests == 7_341
        assert measured.prompt_tokens == prompt_tokens
        assert measured.output_tokens == output_tokens

    def test_the_warm_up_is_the_same_threads_in_the_same_order(self, blog: Workload) -> None:
        assert blog.warm_up == 1_000
        assert blog.sessions[:1_000] == blog.sessions[1_000:]

    def test_each_turn_sends_the_whole_conversation(self, blog: Workload) -> None:
        assert all(grows(session) for session in blog.sessions)

    def test_threads_have_at_least_5_messages_and_2500_characters(self, blog: Workload) -> None:
        assert min(len(session.turns) for session in blog.sessions) == 5
        assert min(4 * user_tokens(session) for session in blog.sessions) >= 0.95 * 2_500

    def test_responses_have_at_most_10_tokens(self, blog: Workload) -> None:
        assert max(turn.output.tokens for one in blog.sessions for turn in one.turns) == 10

    def test_each_scenario_has_its_users_and_replicas(self, blog: Workload) -> None:
        large = blog_8xh100()
        assert (blog.concurrency, blog.replicas) == (80, 2)
        assert (large.concurrency, large.replicas) == (320, 8)
