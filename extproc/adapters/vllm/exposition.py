"""Reads an endpoint's load, cache and adapters from vLLM's `/metrics`.

The exposition has 50 kB and more, a few lines of it matter, and each endpoint is read several times
a second in the event loop that routes requests. So the reader searches for the beginnings of those
lines and parses nothing else.

Some names share a beginning (`…_waiting` and `…_waiting_by_reason`). Several engines at one address
have one series each. The labels that list adapters leave a series for each value they ever had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import NamedTuple

from extproc.adapters.vllm.names import MOST_ADAPTERS, usable_adapter_names
from extproc.adapters.vllm.readings import Failure, Result
from extproc.core.fleet.report import MOST_REQUESTS, PrefillTotals, Report, StepTotals, sound_load

WAITING = b"vllm:num_requests_waiting"
RUNNING = b"vllm:num_requests_running"
KV_USAGE = b"vllm:kv_cache_usage_perc"
OLD_KV_USAGE = b"vllm:gpu_cache_usage_perc"
LORA = b"vllm:lora_requests_info"
CACHE = b"vllm:cache_config_info"
QUERIED_TOKENS = b"vllm:prefix_cache_queries_total"
CACHED_TOKENS = b"vllm:prefix_cache_hits_total"
EXTERNAL_TOKENS = b"vllm:external_prefix_cache_hits_total"
"""Prompt tokens that a KV connector loaded from outside the GPU; they are not in CACHED_TOKENS."""
FIRST_TOKENS = b"vllm:time_to_first_token_seconds_count"
RESPONDED_TOKENS = b"vllm:prompt_tokens_total"
PREEMPTIONS = b"vllm:num_preemptions_total"
FIRST_TOKEN_SECONDS = b"vllm:time_to_first_token_seconds_sum"
STEPS = b"vllm:iteration_tokens_total_count"
STEP_TOKENS = b"vllm:iteration_tokens_total_sum"
GENERATED_TOKENS = b"vllm:generation_tokens_total"
BETWEEN_TOKENS_SECONDS = b"vllm:inter_token_latency_seconds_sum"
BETWEEN_TOKENS = b"vllm:inter_token_latency_seconds_count"
PREFILLS = b"vllm:request_prefill_time_seconds_count"
PREFILL_SECONDS = b"vllm:request_prefill_time_seconds_sum"
PREFILL_TOKENS = b"vllm:request_prefill_kv_computed_tokens_sum"
FINISHED = b"vllm:request_success_total"
"""Requests that ended, one series for each reason. vLLM has a series for aborts, but requests whose
clients leave do not count there."""

# Each engine has a series, which takes a microsecond to read.
_MOST_ENGINES = 1000
# One for each set of adapters that ever ran together. If there are more, the number of slots is
# still right.
_MOST_LABEL_SETS = 10_000
# A thousand adapters take some 30 kB.
_LONGEST_LABEL_SET = 65_536
# Limit of a value with escapes, which real names of adapters do not have.
_LONGEST_ESCAPED = 4096
_MOST_LABELS = 100
# Engines whose cache configuration is read; they are all alike.
_MOST_CACHES = 64
# Three times the usual length; the reader caches these lines.
_LONGEST_CACHE_CONFIG = 4096
# No engine counts this far. Sums of larger numbers could become infinite.
_HIGHEST_COUNT = 1e15
# Longer numbers do not occur, and take long to parse.
_LONGEST_NUMBER = 64

_LABEL = re.compile(rb'[{,]\s*([^={},"\s]+)\s*=\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*')
_ESCAPED = re.compile(rb"\\(.)")


class _Adapters(NamedTuple):
    """Adapters in the metrics; without any, LoRA is off."""

    slots: int | None = None
    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()


class _Cache(NamedTuple):
    """The KV cache of an engine, as far as its series describes it."""

    block_size: int | None
    blocks: int | None
    tokens: int | None


def read_report(text: bytes) -> Report:
    """Return the report in a Prometheus text exposition.

    Raises Failure if the waiting or running requests or the cache usage are missing: a zero in
    their place would attract requests.
    """
    if not text.endswith(b"\n"):
        raise Failure(Result.GARBLED, "the exposition is cut off")
    text = b"\n" + text
    waiting, running = _numbers(text, WAITING), _numbers(text, RUNNING)
    usage = _numbers(text, KV_USAGE, OLD_KV_USAGE)
    load = sound_load(sum(waiting), sum(usage) / len(usage))
    if load is None or sum(running) > MOST_REQUESTS:
        raise Failure(Result.GARBLED, "the load is higher than any endpoint can have")
    adapters = _adapters(text)
    block_size, blocks, kv_tokens = _cache(text)
    return Report(
        load,
        sum(running),
        adapters.slots,
        adapters.running,
        adapters.waiting,
        block_size,
        blocks,
        _total(text, QUERIED_TOKENS),
        _cached(text),
        _total(text, FIRST_TOKENS),
        _total(text, FINISHED),
        _total(text, PREEMPTIONS),
        _total(text, FIRST_TOKEN_SECONDS),
        _steps(text),
        _prefills(text),
        _total(text, RESPONDED_TOKENS),
        kv_tokens,
    )


def _series(text: bytes, name: bytes) -> Iterator[bytes]:
    """Yield what follows the name on each line of this and of any metric with a longer name."""
    beginning = b"\n" + name
    start = text.find(beginning)
    while start >= 0:
        end = text.find(b"\n", start + 1)
        yield text[start + len(beginning) : end]
        start = text.find(beginning, end)


def _is_own(series: bytes) -> bool:
    """Return True if labels or the value follow, so that the name has ended."""
    return series.startswith((b"{", b" ", b"\t"))


def _numbers(text: bytes, name: bytes, old_name: bytes = b"") -> list[float]:
    """Return the values of a metric's series, at least one. Raises Failure."""
    found = []
    for count, series in enumerate(_series(text, name)):
        if count == _MOST_ENGINES:
            raise Failure(Result.GARBLED, f"more than {_MOST_ENGINES} series of {name.decode()}")
        if _is_own(series):
            found.append(_value(series))
    if not found and old_name:
        return _numbers(text, old_name)
    if not found:
        raise Failure(Result.GARBLED, f"{name.decode()} is missing")
    if not all(isfinite(value) and value >= 0 for value in found):
        raise Failure(Result.GARBLED, f"{name.decode()} is {min(found)}")
    return found


def _total(text: bytes, name: bytes) -> float | None:
    """Return a counter's sum over all engines; None if it is missing or no engine can have it."""
    every = islice(_series(text, name), _MOST_ENGINES)
    values = [_value(series) for series in every if _is_own(series)]
    total = sum(values)
    return total if values and min(values) >= 0 and total <= _HIGHEST_COUNT else None


def _cached(text: bytes) -> float | None:
    """Return the prompt tokens found in all caches; None if unknown. Old vLLM has no others."""
    local = _total(text, CACHED_TOKENS)
    return None if local is None else local + (_total(text, EXTERNAL_TOKENS) or 0.0)


def _steps(text: bytes) -> StepTotals | None:
    """Return the counters of an engine's steps; None if one is missing, or with several engines.

    The steps of several engines overlap, so their sums say nothing.
    """
    names = (STEPS, STEP_TOKENS, GENERATED_TOKENS, BETWEEN_TOKENS_SECONDS, BETWEEN_TOKENS)
    found = []
    for name in names:
        series = [one for one in islice(_series(text, name), _MOST_ENGINES) if _is_own(one)]
        value = _value(series[0]) if len(series) == 1 else -1.0
        if not 0 <= value <= _HIGHEST_COUNT:
            return None
        found.append(value)
    steps, tokens, generated, seconds, times = found
    return StepTotals(steps, max(0.0, tokens - generated), seconds, times)


def _prefills(text: bytes) -> PrefillTotals | None:
    """Return the counters of the prompts of finished requests; None if one is missing."""
    prompts, seconds = _total(text, PREFILLS), _total(text, PREFILL_SECONDS)
    tokens = _total(text, PREFILL_TOKENS)
    if prompts is None or seconds is None or tokens is None:
        return None
    return PrefillTotals(prompts, seconds, tokens)


def _value(series: bytes) -> float:
    """Return the number after the labels, before any timestamp; NaN if there is none."""
    words = series[series.rfind(b"}") + 1 :].split(None, 1)
    if not words or len(words[0]) > _LONGEST_NUMBER:
        return float("nan")
    try:
        return float(words[0])
    except ValueError:
        return float("nan")


def _adapters(text: bytes) -> _Adapters:
    """Return the adapters of the newest series; its value is the time at which it was written."""
    current, newest = b"", float("-inf")
    for series in islice(_series(text, LORA), _MOST_LABEL_SETS):
        if len(series) > _LONGEST_LABEL_SET or not _is_own(series):
            continue
        # NaN is not greater than anything.
        if (value := _value(series)) > newest:
            current, newest = series, value
    if not current:
        return _Adapters()
    labels = _labels(current)
    return _Adapters(
        _positive(labels.get(b"max_lora")),
        _names(labels.get(b"running_lora_adapters")),
        _names(labels.get(b"waiting_lora_adapters")),
    )


def _cache(text: bytes) -> tuple[int | None, int | None, int | None]:
    """Return the tokens of a block, and the blocks and the tokens of all engines together.

    Each series of data parallel engines has the blocks of all of them, but its own tokens (measured
    with vLLM 0.32).
    """
    caches: dict[bytes, _Cache] = {}
    for series in islice(_series(text, CACHE), _MOST_CACHES):
        if _is_own(series) and len(series) <= _LONGEST_CACHE_CONFIG:
            engine, cache = _cache_of_engine(series)
            caches[engine] = cache
    block_size = next((one.block_size for one in caches.values() if one.block_size), None)
    blocks = max((one.blocks or 0 for one in caches.values()), default=0)
    tokens = sum(one.tokens or 0 for one in caches.values())
    return block_size, blocks or None, tokens or None


@lru_cache(maxsize=1024)
def _cache_of_engine(series: bytes) -> tuple[bytes, _Cache]:
    """Return the engine and its cache. Cached: the forty labels never change."""
    labels = _labels(series)
    blocks = _positive(labels.get(b"num_gpu_blocks"))
    override = _positive(labels.get(b"num_gpu_blocks_override"))
    tokens = _positive(labels.get(b"kv_cache_size_tokens"))
    size = _positive(labels.get(b"block_size"))
    return labels.get(b"engine", b""), _Cache(size, blocks or override, tokens)


def _labels(series: bytes) -> dict[bytes, bytes]:
    """Return the labels of a series, up to the first malformed one; values keep their escapes."""
    labels: dict[bytes, bytes] = {}
    position = 0
    for _ in range(_MOST_LABELS):
        # From the end of the last label: searching would scan a long line again and again.
        label = _LABEL.match(series, position)
        if label is None:
            break
        labels[label[1]] = label[2]
        position = label.end()
    return labels


def _positive(value: bytes | None) -> int | None:
    """Return a positive whole number; None for any other text, such as Python's `None`."""
    if value is None or not value.isdigit() or len(value) > _LONGEST_NUMBER:
        return None
    return int(value) or None


def _names(value: bytes | None) -> frozenset[str]:
    """Return the adapters of a comma-separated list."""
    if not value or (b"\\" in value and len(value) > _LONGEST_ESCAPED):
        return frozenset()
    try:
        text = _ESCAPED.sub(_unescaped, value).decode()
    except UnicodeDecodeError:
        return frozenset()
    names = text.split(",", MOST_ADAPTERS)[:MOST_ADAPTERS]
    return usable_adapter_names(name.strip() for name in names)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return b"\n" if escape[1] == b"n" else escape[1]
