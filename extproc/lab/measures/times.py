"""Statistics of times, as vLLM's benchmark_serving.py offers them."""

from __future__ import annotations

import math

import numpy as np

from extproc.lab.measures.run import Floats

PERCENTILES = (90, 95, 99)


def milliseconds(quantity: str, seconds: Floats) -> dict[str, float]:
    """Return `mean_<quantity>_ms`, median, std and percentiles; all NaN without times.

    As in benchmark_serving.py, the deviation is the population's and percentiles are interpolated.
    """
    names = ["mean", "median", "std", *(f"p{percent}" for percent in PERCENTILES)]
    values = [math.nan] * len(names)
    if seconds.size:
        center = [np.mean(seconds), np.median(seconds), np.std(seconds)]
        values = [float(value) * 1e3 for value in (*center, *np.percentile(seconds, PERCENTILES))]
    return {f"{name}_{quantity}_ms": value for name, value in zip(names, values, strict=True)}


def ratio(amount: float, by: float) -> float:
    """Return the quotient; NaN unless `by` is positive."""
    return amount / by if by > 0 else math.nan
