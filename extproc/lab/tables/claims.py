"""A publication's claims, as conditions that simulated figures meet or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Ours = Callable[[str, str], float]
"""The simulated figure of a strategy, by metric."""


class Claim(NamedTuple):
    """A claim with its condition."""

    text: str
    holds: Callable[[Ours], bool]


def _beats(better: str, worse: str, times: bool = True) -> Callable[[Ours], bool]:
    """Compare requests/min and, if `times`, both times to first token."""

    def holds(ours: Ours) -> bool:
        faster = all(
            ours(better, one) < ours(worse, one) for one in ("mean_ttft_ms", "p95_ttft_ms")
        )
        more = ours(better, "requests_per_minute") > ours(worse, "requests_per_minute")
        return more and (faster or not times)

    return holds


def _slower(one: str, other: str) -> Callable[[Ours], bool]:
    return lambda ours: ours(one, "mean_ttft_ms") > ours(other, "mean_ttft_ms")


_PARTS = ("LeastQueue", "LeastKVCache", "QueueKVCache", "LoraQueue", "LoraKVCache")

LORA: Mapping[str, list[Claim]] = {
    "lora-0": [
        Claim(
            f"{name} beats LeastRequest in TTFT, its P95 and requests/min",
            _beats(name, "LeastRequest"),
        )
        for name in ("LowLatency", "LeastKVCache", "QueueKVCache")
    ],
    "lora-10": [
        Claim(
            "LowLatency beats LeastRequest in TTFT, its P95 and requests/min",
            _beats("LowLatency", "LeastRequest"),
        ),
        Claim(
            "LowLatency has the shortest TTFT of all",
            lambda ours: all(_slower(one, "LowLatency")(ours) for one in (*_PARTS, "LeastRequest")),
        ),
        Claim(
            "LoraQueue about halves LeastRequest's TTFT",
            lambda ours: (
                ours("LoraQueue", "mean_ttft_ms") < 0.65 * ours("LeastRequest", "mean_ttft_ms")
            ),
        ),
        Claim(
            "LeastQueue's TTFT is about LeastRequest's (within a fifth)",
            lambda ours: (
                abs(ours("LeastQueue", "mean_ttft_ms") / ours("LeastRequest", "mean_ttft_ms") - 1)
                <= 0.2
            ),
        ),
        Claim(
            "all parts of the chain lose requests/min to LeastRequest",
            lambda ours: all(_beats("LeastRequest", one, times=False)(ours) for one in _PARTS),
        ),
        Claim(
            "LeastKVCache has a longer TTFT than LeastRequest",
            _slower("LeastKVCache", "LeastRequest"),
        ),
    ],
    "lora-4": [
        Claim(
            "QueueKVCache beats LeastRequest in TTFT, its P95 and requests/min",
            _beats("QueueKVCache", "LeastRequest"),
        ),
        Claim(
            "QueueKVCache and LeastKVCache have the shortest TTFT of all",
            lambda ours: all(
                _slower(one, best)(ours)
                for one in ("LeastRequest", "LowLatency", "LeastQueue", "LoraQueue", "LoraKVCache")
                for best in ("QueueKVCache", "LeastKVCache")
            ),
        ),
        Claim(
            "LoraQueue has a longer TTFT than QueueKVCache", _slower("LoraQueue", "QueueKVCache")
        ),
        Claim(
            "LowLatency has a longer TTFT than QueueKVCache", _slower("LowLatency", "QueueKVCache")
        ),
        Claim(
            "LowLatency has as many requests/min as LeastRequest (within 3 %)",
            lambda ours: (
                abs(
                    ours("LowLatency", "requests_per_minute")
                    / ours("LeastRequest", "requests_per_minute")
                    - 1
                )
                <= 0.03
            ),
        ),
        Claim(
            "affinity first still has a shorter TTFT than LeastRequest",
            lambda ours: all(
                _slower("LeastRequest", one)(ours)
                for one in ("LowLatency", "LoraQueue", "LoraKVCache")
            ),
        ),
    ],
}
