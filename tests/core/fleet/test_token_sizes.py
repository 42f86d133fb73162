from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.token_sizes import TokenSizes
from extproc.core.request.blocks import BYTES_PER_TOKEN
from tests.core.builders import thorough


def test_default_size_before_the_first_record() -> None:
    assert TokenSizes().of("llama") == BYTES_PER_TOKEN


def test_learns_from_token_counts() -> None:
    sizes = TokenSizes()
    for _ in range(300):
        sizes.record("llama", 3000, 1000)
    assert sizes.of("llama") == pytest.approx(3.0, abs=0.05)


def test_learns_each_model_separately() -> None:
    sizes = TokenSizes()
    for _ in range(300):
        sizes.record("chinese", 2500, 1000)
    assert sizes.of("chinese") < 3
    assert sizes.of("llama") == BYTES_PER_TOKEN


def test_one_short_prompt_changes_little() -> None:
    sizes = TokenSizes()
    sizes.record("llama", 20, 30)  # most of them are of the chat template
    assert 0.95 * BYTES_PER_TOKEN < sizes.of("llama") < BYTES_PER_TOKEN


def test_many_short_prompts_change_little_of_what_long_ones_showed() -> None:
    sizes = TokenSizes()
    for _ in range(50):
        sizes.record("llama", 30_000, 10_000)
    for _ in range(1_000):
        sizes.record("llama", 20, 30)
    assert sizes.of("llama") == pytest.approx(3.0, abs=0.2)


def test_one_long_prompt_is_enough() -> None:
    sizes = TokenSizes()
    sizes.record("llama", 90_000, 30_000)
    assert sizes.of("llama") == 3.0


def test_follows_a_change() -> None:
    sizes = TokenSizes()
    for size in (20_000, 60_000):
        for _ in range(600):
            sizes.record("llama", size, 10_000)
    assert sizes.of("llama") == pytest.approx(6.0, abs=0.1)


def test_begins_with_what_another_sidecar_learned() -> None:
    sizes = TokenSizes()
    sizes.adopt("llama", 3.0)
    sizes.record("llama", 20, 30)
    assert 2.9 < sizes.of("llama") < 3.0


def test_long_prompts_count_for_more() -> None:
    sizes = TokenSizes()
    for _ in range(300):
        sizes.record("llama", 3000, 1000)
        sizes.record("llama", 300, 60)
    assert sizes.of("llama") == pytest.approx(3300 / 1060, abs=0.01)


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        pytest.param(1000, 0, id="no tokens"),
        pytest.param(1000, -5, id="fewer than none"),
        pytest.param(0, 1000, id="no text"),
        pytest.param(10, 1000, id="an image, or a prompt that was not seen"),
        pytest.param(1_000_000, 10, id="a prompt of which the server dropped most"),
        pytest.param(float("nan"), 10, id="no number"),
        pytest.param(float("inf"), 10, id="endless"),
    ],
)
def test_ignores_sizes_that_cannot_be_text(size: float, tokens: int) -> None:
    sizes = TokenSizes()
    for _ in range(100):
        sizes.record("llama", size, tokens)
    assert sizes.of("llama") == BYTES_PER_TOKEN


@thorough
@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(-1, 100_000))))
def test_stays_within_the_recorded_sizes(answers: list[tuple[float, int]]) -> None:
    sizes = TokenSizes()
    for size, tokens in answers:
        sizes.record("llama", size, tokens)
    seen = [size / tokens for size, tokens in answers if tokens > 0]
    sound = [BYTES_PER_TOKEN, *(size for size in seen if 0.1 < size < 100)]
    assert min(sound) - 1e-9 <= sizes.of("llama") <= max(sound) + 1e-9
