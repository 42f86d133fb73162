"""Lengths in tokens: drawn at random, and fitted to published totals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import exp, log, log1p
from random import Random

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]

# Halvings of the factor's interval. After them, rounding leaves less than a token each.
_HALVINGS = 64


def log_normal(
    rng: Random, mean: float, sigma: float, least: int = 1, most: int | None = None
) -> int:
    """Draw a length. `mean` is that of the uncut distribution, `sigma` that of the logarithm."""
    length = max(least, round(rng.lognormvariate(log(mean) - sigma * sigma / 2, sigma)))
    return length if most is None else min(most, length)


def log_uniform(rng: Random, least: float, most: float) -> int:
    """Draw a length: 1,000 to 2,000 is as likely as 2,000 to 4,000."""
    return round(exp(rng.uniform(log(least), log(most))))


def geometric(rng: Random, mean: float, most: int) -> int:
    """Draw zero or more: the repetitions of something that ends at random."""
    return min(most, int(rng.expovariate(log1p(1 / mean))))


def shares(rng: Random, total: int, weights: Sequence[float], sigma: float) -> list[int]:
    """Divide a total into parts of at least one token, on average in proportion to the weights.

    `sigma` is that of the logarithms of parts with equal weight.
    """
    drawn = [weight * rng.lognormvariate(0.0, sigma) for weight in weights]
    unit = (total - len(drawn)) / sum(drawn)
    ends = [round(end * unit) for end in accumulate(drawn)]
    return [1 + end - start for start, end in zip([0, *ends], ends, strict=False)]


def fit(
    lengths: Sequence[int],
    counts: Sequence[int],
    total: int,
    least: int = 1,
    most: int | None = None,
) -> list[int]:
    """Change the lengths in proportion, so that sum(count * length) is exactly the total.

    All results are from `least` to `most`, and keep their order except for a token or two. The
    counts should include a 1, or two that differ by 1, because other counts give only a few totals.

    Raises ValueError if that is impossible, or if the search does not find a result.
    """
    sizes = np.asarray(lengths, np.float64)
    weights = np.asarray(counts, np.int64)
    ceiling = total if most is None else most
    lowest, highest = int(weights.sum()) * least, int(weights.sum()) * ceiling
    if not lowest <= total <= highest:
        raise ValueError(f"lengths with totals from {lowest} to {highest} cannot make {total}")
    fitted = _scaled(sizes, weights, total, least, ceiling)
    missing = _raise(fitted, weights, total - int(weights @ fitted), ceiling)
    _exchange(fitted, weights, missing, least, ceiling)
    return [int(length) for length in fitted]


def _scaled(sizes: NDArray[np.float64], weights: _Ints, total: int, least: int, most: int) -> _Ints:
    """Scale all lengths by the factor that comes closest to the total without exceeding it."""

    def by(factor: float) -> _Ints:
        return np.clip(np.rint(sizes * factor), least, most).astype(np.int64)

    low, high = 0.0, 2.0 * most / float(sizes.min())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if int(weights @ by(middle)) <= total:
            low = middle
        else:
            high = middle
    return by(low)


def _raise(fitted: _Ints, weights: _Ints, missing: int, most: int) -> int:
    """Add a token to one after the other; return the rest, which is too small for any."""
    before = None
    while missing and missing != before:
        before = missing
        for number, weight in enumerate(weights.tolist()):
            if weight <= missing and fitted[number] < most:
                fitted[number] += 1
                missing -= weight
    return missing


def _exchange(fitted: _Ints, weights: _Ints, missing: int, least: int, most: int) -> None:
    """Take a token from one length and add one to another with a count that is 1 higher: one more
    in total.
    """
    known = set(weights.tolist())
    pair = next((count for count in sorted(known) if count + 1 in known), None)
    for _ in range(missing):
        longest = _extreme(fitted, (weights == pair) & (fitted > least), largest=True)
        shortest = _extreme(fitted, (weights == (pair or 0) + 1) & (fitted < most), largest=False)
        if pair is None or longest is None or shortest is None:
            raise ValueError(f"no lengths with these counts make the total: {missing} are left")
        fitted[longest] -= 1
        fitted[shortest] += 1


def _extreme(fitted: _Ints, allowed: NDArray[np.bool_], largest: bool) -> int | None:
    places = np.flatnonzero(allowed)
    if not len(places):
        return None
    chosen = fitted[places].argmax() if largest else fitted[places].argmin()
    return int(places[chosen])
