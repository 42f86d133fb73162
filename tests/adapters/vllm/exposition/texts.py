"""Texts of expositions, and readings of them."""

from __future__ import annotations

from string import ascii_letters

from hypothesis import strategies as st

from extproc.adapters.vllm.exposition import read_report
from extproc.core.fleet.report import Report

NAMES = {
    "waiting": "vllm:num_requests_waiting",
    "running": "vllm:num_requests_running",
    "usage": "vllm:kv_cache_usage_perc",
}


def exposition(**values: str) -> str:
    """Return an exposition with these values instead of zeros; "" omits a metric."""
    shown = {name: values.get(name, "0.0") for name in NAMES}
    return "".join(f'{NAMES[n]}{{engine="0"}} {value}\n' for n, value in shown.items() if value)


def read(text: str) -> Report:
    return read_report(text.encode())


COUNTERS = {
    "prompt_tokens": "vllm:prefix_cache_queries_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "first_token_seconds": "vllm:time_to_first_token_seconds_sum",
    "preemptions": "vllm:num_preemptions_total",
}


labels = st.dictionaries(
    st.text(ascii_letters, min_size=1, max_size=4), st.text(max_size=8), max_size=3
)


# Tests compare exactly: numbers whose sums and means are exact in any order.
series = st.lists(st.tuples(labels, st.integers(0, 2**18)), max_size=3)
