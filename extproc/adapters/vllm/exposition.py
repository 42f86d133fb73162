"""What vLLM's `/metrics` says of an endpoint's load, cache and adapters.

It is 50 kB and more, a few lines of it matter, and each endpoint is asked several
times a second beside the loop that routes. So those lines are looked for by how they
begin, and nothing else is parsed.

Names begin alike (`…_waiting` and `…_waiting_by_reason`), several engines behind one
address have a series each, and the labels that list adapters leave a series behind
for each value they ever had.
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
from extproc.core.fleet.signals import MOST_REQUESTS, Report, sound_load

WAITING = b"vllm:num_requests_waiting"
RUNNING = b"vllm:num_requests_running"
KV_USAGE = b"vllm:kv_cache_usage_perc"
OLD_KV_USAGE = b"vllm:gpu_cache_usage_perc"
LORA = b"vllm:lora_requests_info"
CACHE = b"vllm:cache_config_info"
PROMPT_TOKENS = b"vllm:prefix_cache_queries_total"
CACHED_TOKENS = b"vllm:prefix_cache_hits_total"
FIRST_TOKENS = b"vllm:time_to_first_token_seconds_count"
FINISHED = b"vllm:request_success_total"
"""In spite of its name it counts all that end, a series for each reason, aborts among them."""

# Each has a series, which costs a microsecond to read.
_MOST_ENGINES = 1000
# One for each set of adapters that ever ran together. What has more is not looked through, and
# its slots are right all the same.
_MOST_LABEL_SETS = 10_000
# A thousand adapters are some 30 kB; what is longer is no list of them.
_LONGEST_LABEL_SET = 65_536
# With escapes, which no honest adapter's name has.
_LONGEST_ESCAPED = 4096
_MOST_LABELS = 100
# Engines whose cache is looked at; they are all alike.
_MOST_CACHES = 64
# Three times what it is; what is remembered of them is bounded.
_LONGEST_CACHE_CONFIG = 4096
# A longer number is none, and takes long to be refused.
_LONGEST_NUMBER = 64

_LABEL = re.compile(rb'[{,]\s*([^={},"\s]+)\s*=\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*')
_ESCAPED = re.compile(rb"\\(.)")


class _Adapters(NamedTuple):
    """What is said of adapters; LoRA is off where nothing is."""

    slots: int | None = None
    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()


def read_report(text: bytes) -> Report:
    """The report in a Prometheus text exposition.

    Raises Failure where it does not say what waits, what runs or how full the cache is:
    a zero in its place would draw requests.
    """
    if not text.endswith(b"\n"):
        raise Failure(Result.GARBLED, "the exposition is cut off")
    text = b"\n" + text
    waiting, running = _numbers(text, WAITING), _numbers(text, RUNNING)
    usage = _numbers(text, KV_USAGE, OLD_KV_USAGE)
    load = sound_load(sum(waiting), sum(usage) / len(usage))
    if load is None or sum(running) > MOST_REQUESTS:
        raise Failure(Result.GARBLED, "figures that no endpoint can have")
    adapters = _adapters(text)
    block_size, blocks = _cache(text)
    return Report(
        load,
        sum(running),
        adapters.slots,
        adapters.running,
        adapters.waiting,
        block_size,
        blocks,
        _total(text, PROMPT_TOKENS),
        _total(text, CACHED_TOKENS),
        _total(text, FIRST_TOKENS),
        _total(text, FINISHED),
    )


def _series(text: bytes, name: bytes) -> Iterator[bytes]:
    """What follows the name on each line of a metric, and of those whose names begin so."""
    beginning = b"\n" + name
    start = text.find(beginning)
    while start >= 0:
        end = text.find(b"\n", start + 1)
        yield text[start + len(beginning) : end]
        start = text.find(beginning, end)


def _is_own(series: bytes) -> bool:
    """Whether a line is of the metric itself: after its name come labels, or the value."""
    return series.startswith((b"{", b" ", b"\t"))


def _numbers(text: bytes, name: bytes, old_name: bytes = b"") -> list[float]:
    """The value of each of a metric's series, one at least."""
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
    """A counter's sum over all engines; None where it is missing, or one of them is no number."""
    every = islice(_series(text, name), _MOST_ENGINES)
    values = [_value(series) for series in every if _is_own(series)]
    total = sum(values)
    return total if values and min(values) >= 0 and isfinite(total) else None


def _value(series: bytes) -> float:
    """The number after the labels; a timestamp may follow. NaN where there is none."""
    words = series[series.rfind(b"}") + 1 :].split(None, 1)
    if not words or len(words[0]) > _LONGEST_NUMBER:
        return float("nan")
    try:
        return float(words[0])
    except ValueError:
        return float("nan")


def _adapters(text: bytes) -> _Adapters:
    """By the series that was written last: its value is the time when."""
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


def _cache(text: bytes) -> tuple[int | None, int | None]:
    """Tokens of a block, and blocks of all engines together."""
    block_size: int | None = None
    blocks: dict[bytes, int] = {}
    for series in islice(_series(text, CACHE), _MOST_CACHES):
        if _is_own(series) and len(series) <= _LONGEST_CACHE_CONFIG:
            engine, size, number = _cache_of_engine(series)
            block_size = block_size or size
            if number is not None:
                blocks[engine] = number
    return block_size, sum(blocks.values()) or None


@lru_cache(maxsize=1024)
def _cache_of_engine(series: bytes) -> tuple[bytes, int | None, int | None]:
    """Engine, tokens of a block, and blocks. Forty labels, and they never change."""
    labels = _labels(series)
    blocks = _positive(labels.get(b"num_gpu_blocks"))
    override = _positive(labels.get(b"num_gpu_blocks_override"))
    return labels.get(b"engine", b""), _positive(labels.get(b"block_size")), blocks or override


def _labels(series: bytes) -> dict[bytes, bytes]:
    """The labels of a series, up to the first that is none; values as they are written."""
    labels: dict[bytes, bytes] = {}
    position = 0
    for _ in range(_MOST_LABELS):
        # Always from where the last one ended: a search would look at a long line over and over.
        label = _LABEL.match(series, position)
        if label is None:
            break
        labels[label[1]] = label[2]
        position = label.end()
    return labels


def _positive(value: bytes | None) -> int | None:
    """A whole number; None for Python's `None`, and for anything else."""
    if value is None or not value.isdigit() or len(value) > _LONGEST_NUMBER:
        return None
    return int(value) or None


def _names(value: bytes | None) -> frozenset[str]:
    """The adapters in a list that commas join."""
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
