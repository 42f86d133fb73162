"""The command line of the stand-in vLLM replicas."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Profile
from extproc.lab.stand_ins.http import MAX_MODEL_LEN
from extproc.lab.stand_ins.vllm_metrics import MetricsStyle

_DEFAULT = L4_LLAMA_3_1_8B_FP8


@dataclass(frozen=True)
class Settings:
    """The values of the command line."""

    host: str
    ports: tuple[int, ...]
    """A port for each replica; 0 for any free one."""

    models: tuple[str, ...]
    """Served model names; empty to accept any name."""

    adapters: tuple[str, ...]
    """Names of LoRA adapters that are loaded at the start."""

    time_scale: float
    """Speed, in multiples of real time."""

    profile: Profile
    max_model_len: int
    """Most tokens of prompt and output together."""

    style: MetricsStyle
    """Format of /metrics."""

    announce: bool
    """True to print the ports on stdout once they are open."""


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Return the settings of a command line; exit with 2 if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m extproc.lab.stand_ins.vllm", description="Stand-in vLLM replicas."
    )
    _add_server(parser)
    _add_engine(parser)
    _add_lora(parser)
    _add_metrics(parser)
    parsed = parser.parse_args(arguments)
    _check(parser, parsed)
    return Settings(
        host=parsed.host,
        ports=parsed.ports,
        models=parsed.model,
        adapters=parsed.adapters,
        time_scale=parsed.time_scale,
        profile=_profile(parsed),
        max_model_len=parsed.max_model_len,
        style=MetricsStyle(parsed.old_metric_names, parsed.metrics_padding),
        # The caller cannot know a port that the kernel chooses.
        announce=parsed.announce or 0 in parsed.ports,
    )


def _profile(parsed: argparse.Namespace) -> Profile:
    return replace(
        _DEFAULT,
        kv_tokens=parsed.kv_tokens,
        max_num_seqs=parsed.max_num_seqs,
        max_loras=parsed.max_loras,
        max_cpu_loras=parsed.max_cpu_loras,
        lora_load_seconds=parsed.lora_load_seconds,
    )


def _check(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Refuse values that contradict each other."""
    if parsed.kv_tokens < _DEFAULT.block_size:
        parser.error(f"--kv-tokens: give at least one block ({_DEFAULT.block_size} tokens)")
    if parsed.adapters and not parsed.max_loras:
        parser.error("--adapters: give --max-loras, which turns LoRA on")
    if both := set(parsed.adapters) & set(parsed.model):
        parser.error(f"--adapters: {', '.join(both)} is also a name of the base model")
    if 0 < parsed.max_cpu_loras < parsed.max_loras:
        parser.error("--max-cpu-loras: give at least --max-loras, which it includes")


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ports", type=_ports, required=True, help="comma-separated list; 0 for any free port"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--model",
        type=_names,
        default=(),
        help="comma-separated list of served model names (default: any name)",
    )
    parser.add_argument(
        "--announce",
        action="store_true",
        help='print {"ports": [...]} in one line once they are open (always done for port 0)',
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--time-scale",
        type=_positive_float,
        default=1.0,
        help="speed, in multiples of real time (default: %(default)s)",
    )
    parser.add_argument(
        "--kv-tokens",
        type=_positive_int,
        default=_DEFAULT.kv_tokens,
        help="size of the KV cache of each replica (default: %(default)s)",
    )
    parser.add_argument(
        "--max-num-seqs",
        type=_positive_int,
        default=_DEFAULT.max_num_seqs,
        help="most requests in a running batch (default: %(default)s)",
    )
    parser.add_argument(
        "--max-model-len",
        type=_positive_int,
        default=MAX_MODEL_LEN,
        help="most tokens of prompt and output together (default: %(default)s)",
    )


def _add_lora(parser: argparse.ArgumentParser) -> None:
    lora = parser.add_argument_group("LoRA adapters")
    lora.add_argument(
        "--max-loras",
        type=_positive_int,
        default=0,
        help="most adapters in a running batch; turns LoRA on (default: off)",
    )
    lora.add_argument(
        "--max-cpu-loras",
        type=_positive_int,
        default=0,
        help="most adapters in host memory, including those of the batch (default: --max-loras)",
    )
    lora.add_argument(
        "--adapters",
        type=_names,
        default=(),
        help="comma-separated list of adapters to load at the start",
    )
    lora.add_argument(
        "--lora-load-seconds",
        type=_seconds,
        default=_DEFAULT.lora_load_seconds,
        help="seconds to read an adapter from disk, before --time-scale (default: %(default)s)",
    )


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    metrics = parser.add_argument_group("/metrics")
    metrics.add_argument(
        "--old-metric-names",
        action="store_true",
        help="use the format of older vLLM: gpu_cache_usage_perc, and separate labels for running "
        "and waiting adapters",
    )
    metrics.add_argument(
        "--metrics-padding",
        type=_natural,
        default=0,
        metavar="BYTES",
        help="size of additional series without meaning; a real vLLM's /metrics has 50 kB "
        "(default: %(default)s)",
    )


def _ports(text: str) -> tuple[int, ...]:
    ports = tuple(int(part) for part in text.split(","))
    if not all(0 <= port < 65536 for port in ports):
        raise ValueError
    return ports


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    # The first comparison refuses NaN, the second infinity.
    if not 0 < value < 1e9:
        raise ValueError
    return value
