import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.strategies.tied_requests import TiedRequests

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def test_there_are_none_at_first() -> None:
    requests = TiedRequests(0.0)
    requests.fade(10.0)
    assert (requests.rate(A), requests.tokens) == (0.0, 0.0)


def test_their_rate_is_that_of_a_steady_flow_to_each_endpoint() -> None:
    requests = TiedRequests(0.0)
    for half_second in range(600):
        requests.fade(half_second / 2)
        requests.sent(A, 1_000, 1_000)
    assert requests.rate(A) == pytest.approx(2.0, rel=0.02)
    assert requests.rate(B) == 0.0


def test_a_request_counts_by_the_share_that_one_endpoint_alone_has() -> None:
    requests = TiedRequests(0.0)
    requests.sent(A, 1_000, 1_000)
    requests.sent(B, 1_000, 500)
    assert requests.rate(B) == requests.rate(A) / 2


def test_a_request_that_is_not_tied_does_not_count() -> None:
    requests = TiedRequests(0.0)
    requests.sent(A, 1_000, 0)
    requests.sent(A, 0, 0)
    requests.sent(A, 1_000, -64)  # a peer's chain may contradict others
    assert (requests.rate(A), requests.tokens) == (0.0, 0.0)


def test_the_tokens_are_those_of_a_usual_prompt() -> None:
    requests = TiedRequests(0.0)
    requests.sent(A, 1_000, 1_000)
    requests.sent(B, 3_000, 3_000)
    requests.fade(20.0)
    assert requests.tokens == pytest.approx(2_000)


def test_a_prompt_counts_for_the_tokens_by_its_share_too() -> None:
    requests = TiedRequests(0.0)
    requests.sent(A, 1_000, 1_000)
    requests.sent(B, 4_000, 2_000)
    assert requests.tokens == pytest.approx((1_000 + 4_000 / 2) / (1 + 1 / 2))


def test_a_forgotten_endpoint_leaves_no_tokens() -> None:
    requests = TiedRequests(0.0)
    for second in range(400):
        requests.fade(second)
        requests.sent(A, 100_000, 64)
    requests.fade(400)
    requests.sent(B, 1_000, 1_000)
    assert requests.tokens == pytest.approx(1_000)


def test_earlier_requests_count_less_until_they_are_forgotten() -> None:
    requests = TiedRequests(0.0)
    requests.sent(A, 1_000, 1_000)
    rates = []
    for now in (0.0, 30.0, 100.0, 300.0):
        requests.fade(now)
        rates.append(requests.rate(A))
    assert rates[1] == pytest.approx(rates[0] / 2.718, rel=0.01)
    assert rates[1] > rates[2] > rates[3] == requests.tokens == 0.0


@given(st.lists(st.floats(0, 10), min_size=1, max_size=10))
def test_rates_do_not_depend_on_how_often_they_fade(pauses: list[float]) -> None:
    often, once = TiedRequests(0.0), TiedRequests(0.0)
    for requests in (often, once):
        requests.sent(A, 2_000, 1_000)
    now = 0.0
    for pause in pauses:
        now += pause
        often.fade(now)
    once.fade(now)
    assert often.rate(A) == pytest.approx(once.rate(A))
    assert often.tokens == pytest.approx(once.tokens)
