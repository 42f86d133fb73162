"""The workloads of the laboratory, by name.

`named` builds one. Each workload's file separates published facts from assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

# Import modules: a function with a module's name would hide the module.
from extproc.lab.workloads import (
    access_log,
    adversaries,
    agents,
    blog,
    codegen,
    kubeai_chat,
    kubeai_threads,
    lora,
    saas,
    trace,
)
from extproc.lab.workloads.envoy_line import Assumptions
from extproc.lab.workloads.jsonl import WorkloadError
from extproc.lab.workloads.workload import Workload

__all__ = ["Options", "WorkloadError", "described", "named", "names"]


@dataclass(frozen=True)
class Options:
    """Options for a workload. A workload refuses options that it does not have."""

    seed: int = 0
    """Seed of all random choices. Replayed files have none."""

    trace: Path | None = None
    """The file to replay."""

    pace: float = 1.0
    """Speed of requests, or of users between them, as a multiple."""

    concurrency: int | None = None
    """Concurrent sessions, instead of the workload's own number."""

    sessions: int | None = None
    """The first sessions only, and as many that warm up."""

    replicas: int | None = None
    """Engines of the fleet, if not the workload's own number.

    A trace of another fleet is scaled to them. Your own traffic is not.
    """

    real_conversations: bool = False
    """The KubeAI chat benchmark as documented, not as coded."""

    agreement: float = 1.0
    """Agreement of the prompts in an access log that share a prefix hash, 0 to 1."""


class _Known(NamedTuple):
    description: str
    build: Callable[[Options], Workload]
    takes: frozenset[str] = frozenset()
    """Options that not every workload has."""


def names() -> list[str]:
    """Return the names, in the order of the list."""
    return list(_WORKLOADS)


def described() -> dict[str, str]:
    """Return a one-line description of each."""
    return {name: known.description for name, known in _WORKLOADS.items()}


def named(name: str, options: Options | None = None) -> Workload:
    """Build a workload. Equal options give equal workloads.

    Raises WorkloadError for an unknown name, an unknown option or a bad file.
    """
    asked = options or Options()
    known = _WORKLOADS.get(_SHORT.get(name, name))
    if known is None:
        raise WorkloadError(f"unknown workload {name!r}: known workloads are {', '.join(names())}")
    _check(name, known, asked)
    workload = known.build(asked)
    if asked.sessions is not None:
        workload = _first(workload, asked.sessions)
    if asked.concurrency is not None:
        workload = replace(workload, concurrency=asked.concurrency)
    return workload


def _check(name: str, known: _Known, asked: Options) -> None:
    for option in ("trace", "pace", "real_conversations", "agreement"):
        if getattr(asked, option) != getattr(Options, option) and option not in known.takes:
            raise WorkloadError(f"the workload {name} has no option {option}")
    if "trace" in known.takes and asked.trace is None:
        raise WorkloadError(f"the workload {name} needs the option trace: the file to replay")
    for option in ("pace", "concurrency", "sessions"):
        value = getattr(asked, option)
        if value is not None and not value > 0:
            raise WorkloadError(f"{option} must be more than 0, not {value}")
    if not 0 <= asked.agreement <= 1:
        raise WorkloadError(f"agreement must be from 0 to 1, not {asked.agreement}")


def _first(workload: Workload, sessions: int) -> Workload:
    warm_up = workload.sessions[: workload.warm_up][:sessions]
    measured = workload.sessions[workload.warm_up :][:sessions]
    return replace(workload, sessions=[*warm_up, *measured], warm_up=len(warm_up))


def _chat(concurrency: int, asked: Options) -> Workload:
    return kubeai_chat.kubeai_chat(concurrency, asked.seed, asked.pace, asked.real_conversations)


def _threads(concurrency: int, asked: Options) -> Workload:
    return kubeai_threads.kubeai_threads(concurrency, asked.seed)


def _agents(concurrency: int, asked: Options) -> Workload:
    return agents.agents(concurrency, asked.seed, asked.pace)


def _lora(adapters: int, asked: Options) -> Workload:
    return lora.lora(adapters, asked.seed)


def _file(asked: Options) -> Path:
    assert asked.trace is not None  # checked before
    return asked.trace


def _of_lora(adapters: int) -> str:
    asked = f"drawn from {adapters} adapters" if adapters else "for the base model"
    return f"LoRA comparison on A10s: 40 connections, requests {asked}"


_SHORT = {"kubeai-chat": "kubeai-chat-8000", "kubeai-threads": "kubeai-threads-1200"}

_WORKLOADS = {
    **{
        f"kubeai-chat-{concurrency}": _Known(
            f"KubeAI's published tables: 8,000 chat prompts, {concurrency:,} at a time",
            partial(_chat, concurrency),
            frozenset({"pace", "real_conversations"}),
        )
        for concurrency in kubeai_chat.REQUESTS_PER_SECOND
    },
    **{
        f"kubeai-threads-{concurrency}": _Known(
            f"KubeAI's multi-turn benchmark: 8,000 threads, {concurrency:,} at a time",
            partial(_threads, concurrency),
        )
        for concurrency in kubeai_threads.CONCURRENCIES
    },
    "blog-2xL4": _Known(
        "KubeAI's post: 80 users on two L4s, long questions, responses of 10 tokens",
        lambda asked: blog.blog_2xl4(asked.seed),
    ),
    "blog-8xH100": _Known(
        "KubeAI's post: 320 users on eight H100s, the same threads",
        lambda asked: blog.blog_8xh100(asked.seed),
    ),
    **{
        f"lora-{adapters}": _Known(_of_lora(adapters), partial(_lora, adapters))
        for adapters in lora.ADAPTERS
    },
    "saas": _Known(
        "150 system prompts of 6,000 tokens with 5 questions each, at random times",
        lambda asked: saas.saas(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "codegen": _Known(
        "coding agents: system prompts of 3,000 to 100,000 tokens, 2 to 20 turns",
        lambda asked: codegen.codegen(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    **{
        f"agents-{concurrency}": _Known(
            f"coding agents: {concurrency} sessions of 20 to 60 turns, up to 150,000 tokens each",
            partial(_agents, concurrency),
            frozenset({"pace"}),
        )
        for concurrency in agents.CONCURRENCIES
    },
    "one-prefix": _Known(
        "adversary: one system prompt for all, different short questions",
        lambda asked: adversaries.one_prefix(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "all-distinct": _Known(
        "adversary: prompts without common prefixes",
        lambda asked: adversaries.all_distinct(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "hot-prefix": _Known(
        "adversary: half of all requests share a prefix, the others have 100 prefixes",
        lambda asked: adversaries.hot_prefix(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "heavy-tail": _Known(
        "adversary: conversations with a few very long messages",
        lambda asked: adversaries.heavy_tail(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "mooncake": _Known(
        "a recorded trace in Mooncake's format, at its own times",
        lambda asked: trace.mooncake(_file(asked), asked.pace * (asked.replicas or 8) / 8),
        frozenset({"trace", "pace"}),
    ),
    "access-log": _Known(
        "your own traffic, from Envoy's access log or a file of requests",
        lambda asked: access_log.access_log(_file(asked), asked.pace, Assumptions(asked.agreement)),
        frozenset({"trace", "pace", "agreement"}),
    ),
}
