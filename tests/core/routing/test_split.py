from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.routing.split import Split
from extproc.core.schema import SplitSpec
from tests.core.builders import brief

TEXTS = [f"conversation {i}" for i in range(20_000)]


def split(name: str = "canary", /, **weights: int) -> Split:
    targets = [{"model": model, "weight": weight} for model, weight in weights.items()]
    return Split(name, SplitSpec.model_validate({"targets": targets}))


def first(one: Split, text: str) -> str:
    """Return the first target for a key."""
    return next(one.order(text, Random(0)))


def firsts(one: Split) -> list[str]:
    return [first(one, text) for text in TEXTS]


class TestShares:
    @pytest.mark.parametrize(
        "weights",
        [
            {"a": 1},
            {"a": 80, "b": 20},
            {"a": 1, "b": 1, "c": 1},
            {"a": 990, "b": 9, "c": 1},
            {"a": 1_000_000, "b": 1},
            {"a": 3, "b": 0},
        ],
    )
    def test_are_the_weights(self, weights: dict[str, int]) -> None:
        counts = Counter(firsts(split(**weights)))
        for model, weight in weights.items():
            share = weight / sum(weights.values())
            # Five standard deviations.
            tolerance = 5 * (len(TEXTS) * share * (1 - share)) ** 0.5 + 1
            assert counts[model] == pytest.approx(len(TEXTS) * share, abs=tolerance)

    def test_of_second_choices_are_the_weights_of_the_others(self) -> None:
        orders = [list(split(a=70, b=20, c=10).order(text, Random(0))) for text in TEXTS]
        seconds = Counter(order[1] for order in orders if order[0] == "a")
        assert seconds["b"] / seconds.total() == pytest.approx(2 / 3, abs=0.02)

    def test_are_the_weights_also_without_a_key(self) -> None:
        dice = Random(1)
        counts = Counter(next(split(a=80, b=20).order("", dice)) for _ in range(5_000))
        assert counts["a"] == pytest.approx(4_000, abs=150)

    def test_of_two_splits_are_independent(self) -> None:
        # Otherwise the same users would try all new models.
        one, other = firsts(split("one", a=1, b=1)), firsts(split("other", a=1, b=1))
        both = sum(x == y for x, y in zip(one, other, strict=True))
        assert both == pytest.approx(len(TEXTS) / 2, abs=400)


class TestWeightChange:
    def moves(self, before: Split, after: Split) -> Counter[tuple[str, str]]:
        """Return the pairs of targets of the requests that move."""
        pairs = zip(firsts(before), firsts(after), strict=True)
        return Counter((x, y) for x, y in pairs if x != y)

    def test_of_two_targets_moves_only_the_difference(self) -> None:
        moves = self.moves(split(a=90, b=10), split(a=70, b=30))
        assert moves.keys() == {("a", "b")}
        assert moves.total() == pytest.approx(len(TEXTS) * 0.2, abs=300)

    def test_of_one_target_moves_requests_only_to_it_or_from_it(self) -> None:
        up = self.moves(split(a=5, b=1, c=2), split(a=5, b=4, c=2))
        assert {y for _, y in up} == {"b"}
        down = self.moves(split(a=5, b=4, c=2), split(a=5, b=1, c=2))
        assert down == {(y, x): count for (x, y), count in up.items()}

    def test_of_two_among_several_moves_little_more_than_necessary(self) -> None:
        moves = self.moves(split(a=90, b=5, c=5), split(a=70, b=25, c=5))
        assert moves.total() == pytest.approx(len(TEXTS) * 0.2, rel=0.15)

    def test_to_equal_multiples_moves_nothing(self) -> None:
        assert firsts(split(a=8, b=2)) == firsts(split(a=400, b=100))

    def test_that_adds_a_target_moves_only_its_share(self) -> None:
        moves = self.moves(split(a=2, b=1), split(a=2, b=1, c=1))
        assert {y for _, y in moves} == {"c"}

    def test_that_removes_a_target_moves_only_its_share(self) -> None:
        moves = self.moves(split(a=2, b=1, c=1), split(a=2, b=1))
        assert {x for x, _ in moves} == {"c"}


class TestOrder:
    @brief
    @given(st.text(min_size=1), st.dictionaries(st.sampled_from("abcde"), st.integers(1, 9)))
    def test_has_every_target_once_and_is_stable(self, text: str, weights: dict[str, int]) -> None:
        one = split(**{"z": 1, **weights})
        order = list(one.order(text, Random(0)))
        assert sorted(order) == sorted({"z", *weights})
        assert list(one.order(text, Random(1))) == order

    def test_does_not_depend_on_the_order_in_the_document(self) -> None:
        assert firsts(split(a=8, b=2)) == firsts(split(b=2, a=8))

    def test_has_zero_weights_at_the_end(self) -> None:
        one = split(a=0, b=1, c=0, d=5)
        for text in TEXTS[:500]:
            assert set(list(one.order(text, Random(0)))[2:]) == {"a", "c"}

    def test_is_the_same_on_every_instance(self) -> None:
        # Separate processes, whose hash seeds differ.
        code = (
            "from tests.core.routing.test_split import first, split\n"
            "one = split(a=3, b=2, c=1)\n"
            "print(''.join(first(one, f'conversation {i}') for i in range(200)))\n"
        )
        runs = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONHASHSEED": seed},
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout.strip()
            for seed in ("1", "2")
        }
        assert runs == {"".join(firsts(split(a=3, b=2, c=1))[:200])}

    def test_of_known_texts_never_changes(self) -> None:
        """A change would move conversations away from their caches."""
        one = split(stable=80, canary=20)
        assert "".join(first(one, str(i))[0] for i in range(40)) == (
            "ssscscsscssssscsssssssssccssssscssscssss"
        )

    def test_separates_names_from_texts(self) -> None:
        texts = [("ab", "c", "text"), ("a", "bc", "text"), ("a", "b", "ctext")]
        draws = {split(name, **{model: 1})._draw(text, model, 1) for name, model, text in texts}
        assert len(draws) == len(texts)
