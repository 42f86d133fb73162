"""The series of vLLM's /metrics that a router reads, with a stand-in engine's numbers."""

from __future__ import annotations

from extproc.lab.replica import Replica


def exposition(replica: Replica, model_name: str) -> bytes:
    """Prometheus text under vLLM's names and labels."""
    series = (
        ("num_requests_running", "gauge", replica.running),
        ("num_requests_waiting", "gauge", replica.waiting),
        ("kv_cache_usage_perc", "gauge", replica.kv_usage),
        ("num_preemptions_total", "counter", replica.preemptions),
        ("prefix_cache_queries_total", "counter", replica.prefix_cache_queries),
        ("prefix_cache_hits_total", "counter", replica.prefix_cache_hits),
        ("prompt_tokens_total", "counter", replica.prompt_tokens_total),
        ("generation_tokens_total", "counter", replica.generation_tokens_total),
    )
    own = f'engine="0",model_name="{_escaped(model_name)}"'
    lines = [_series(name, kind, own, value) for name, kind, value in series]
    lines.append(_series("cache_config_info", "gauge", _cache_config(replica), 1))
    return "".join(lines).encode()


def _cache_config(replica: Replica) -> str:
    profile = replica.profile
    return (
        f'block_size="{profile.block_size}",enable_prefix_caching="True",engine="0",'
        f'num_gpu_blocks="{profile.kv_blocks}"'
    )


def _series(name: str, kind: str, labels: str, value: float) -> str:
    # The family of a counter has its name without _total.
    family = name.removesuffix("_total") if kind == "counter" else name
    help_and_type = f"# HELP vllm:{family} Of a stand-in.\n# TYPE vllm:{family} {kind}\n"
    return f"{help_and_type}vllm:{name}{{{labels}}} {float(value)}\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
