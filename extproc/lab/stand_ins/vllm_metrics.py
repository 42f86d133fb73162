"""The series of vLLM's /metrics that a router reads, with the values of a simulated engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.utils import floatToGoString

from extproc.lab.engine.replica import Replica
from extproc.lab.stand_ins.lora_gauge import LoraGauge

_CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "engine": "0",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
"""Labels of vLLM 0.32 that have no meaning for a stand-in."""


@dataclass(frozen=True)
class MetricsStyle:
    """Differences to the /metrics of vLLM 0.32."""

    old_names: bool = False
    """True for `gpu_cache_usage_perc` in place of `kv_cache_usage_perc`, as in older releases."""

    padding: int = 0
    """Bytes of additional series without meaning. A real vLLM's text has 50 to 60 kB, most of it
    histograms for which a stand-in has no values."""


def exposition(
    replica: Replica,
    model_name: str,
    style: MetricsStyle = MetricsStyle(),
    gauge: LoraGauge | None = None,
) -> bytes:
    """Return Prometheus text with vLLM's names and labels; `gauge` if LoRA is on."""
    stats = replica.stats
    usage = "gpu_cache_usage_perc" if style.old_names else "kv_cache_usage_perc"
    series = (
        ("num_requests_running", "gauge", stats.running),
        ("num_requests_waiting", "gauge", stats.waiting),
        (usage, "gauge", stats.kv_usage),
        ("num_preemptions_total", "counter", stats.preemptions),
        ("prefix_cache_queries_total", "counter", stats.queries),
        ("prefix_cache_hits_total", "counter", stats.hits),
        ("external_prefix_cache_hits_total", "counter", stats.host_hits),
        ("prompt_tokens_total", "counter", replica.prompt_tokens_total),
        ("generation_tokens_total", "counter", replica.generation_tokens_total),
        ("request_success_total", "counter", replica.finished_total),
    )
    own = f'engine="0",model_name="{_escaped(model_name)}"'
    families = [_family(name, kind, [(own, value)]) for name, kind, value in series]
    tokens = replica.computed_tokens_total + replica.generation_tokens_total
    histograms = (
        (
            "time_to_first_token_seconds",
            replica.first_tokens_total,
            replica.first_token_seconds_total,
        ),
        ("iteration_tokens_total", replica.steps_total, tokens),
        (
            "inter_token_latency_seconds",
            replica.inter_token_times_total,
            replica.inter_token_seconds_total,
        ),
        ("request_prefill_time_seconds", replica.prefills.prompts, replica.prefills.seconds),
        ("request_prefill_kv_computed_tokens", replica.prefills.prompts, replica.prefills.tokens),
    )
    families += [_histogram(name, own, number, total) for name, number, total in histograms]
    if gauge is not None:
        families.append(_family("lora_requests_info", "gauge", _lora_series(replica, gauge)))
    families.append(_family("cache_config_info", "gauge", [(_cache_config(replica), 1)]))
    # The name of an adapter comes from JSON, and may contain half a surrogate pair.
    return _padded("".join(families), style.padding).encode("utf-8", "replace")


def _lora_series(replica: Replica, gauge: LoraGauge) -> Iterator[tuple[str, float]]:
    """Return the series of the adapter gauge. As in vLLM, they have no model_name label."""
    for adapters, stamped in gauge.series.items():
        yield (
            f'max_lora="{replica.profile.max_loras}",'
            f'running_lora_adapters="{_escaped(adapters.running)}",'
            f'waiting_lora_adapters="{_escaped(adapters.waiting)}"',
            stamped,
        )


def _cache_config(replica: Replica) -> str:
    size, blocks = str(replica.profile.block_size), str(replica.profile.kv_blocks)
    own = {
        "block_size": size,
        "effective_attention_block_size": size,
        "kv_cache_size_tokens": str(replica.profile.block_size * replica.profile.kv_blocks),
        "num_gpu_blocks": blocks,
    }
    labels = sorted((_CACHE_CONFIG | own).items())
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _family(
    name: str, kind: str, series: Iterable[tuple[str, float]], sample: str | None = None
) -> str:
    # The family name of a counter omits _total.
    family = name.removesuffix("_total") if kind == "counter" else name
    help_and_type = f"# HELP vllm:{family} From a stand-in.\n# TYPE vllm:{family} {kind}\n"
    lines = (f"vllm:{sample or name}{{{labels}}} {_number(value)}\n" for labels, value in series)
    return help_and_type + "".join(lines)


def _histogram(name: str, labels: str, number: int, total: float) -> str:
    """Return a histogram without buckets."""
    count = _family(name, "histogram", [(labels, number)], f"{name}_count")
    return f"{count}vllm:{name}_sum{{{labels}}} {_number(total)}\n"


def _number(value: float) -> str:
    """Return a number as Prometheus' library writes it: with an exponent from a million on."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _padded(text: str, padding: int) -> str:
    """Add half of the padding before the text and half after it, as in a real vLLM's text."""
    lines = _padding(padding)
    return "".join((*lines[::2], text, *lines[1::2]))


@lru_cache
def _padding(size: int) -> list[str]:
    """Return lines of at least `size` bytes in total."""
    lines: list[str] = []
    while size > 0:
        lines.append(f'standin:padding_bucket{{engine="0",le="{len(lines)}.0"}} 0.0\n')
        size -= len(lines[-1])
    return lines
