"""The catalog of workloads: name, description and builder of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

# Import modules: a function with a module's name would hide the module.
from extproc.lab.workloads import (
    access_log,
    adversaries,
    agents,
    blog,
    bursts,
    codegen,
    deep_rag,
    documents,
    hot_fleet,
    kubeai_chat,
    kubeai_threads,
    lora,
    saas,
    sub_agents,
    tool_agents,
    trace,
)
from extproc.lab.workloads.envoy_line import Assumptions
from extproc.lab.workloads.options import Options
from extproc.lab.workloads.workload import Workload


class Known(NamedTuple):
    """A workload in the catalog."""

    description: str
    build: Callable[[Options], Workload]
    takes: frozenset[str] = frozenset()
    """Options that not every workload has."""


def _chat(concurrency: int, asked: Options) -> Workload:
    return kubeai_chat.kubeai_chat(concurrency, asked.seed, asked.pace, asked.real_conversations)


def _threads(concurrency: int, asked: Options) -> Workload:
    return kubeai_threads.kubeai_threads(concurrency, asked.seed)


def _agents(concurrency: int, asked: Options) -> Workload:
    return agents.agents(concurrency, asked.seed, asked.pace)


def _document_batch(number: int, asked: Options) -> Workload:
    return documents.document_batch(number, asked.seed)


def _hot_fleet(engines: int, asked: Options) -> Workload:
    return hot_fleet.hot_fleet(engines, asked.seed, asked.pace)


def _lora(adapters: int, asked: Options) -> Workload:
    return lora.lora(adapters, asked.seed)


def _file(asked: Options) -> Path:
    assert asked.trace is not None  # checked before
    return asked.trace


def _of_lora(adapters: int) -> str:
    asked = f"drawn from {adapters} adapters" if adapters else "for the base model"
    return f"LoRA comparison on A10s: 40 connections, requests {asked}"


SHORT = {"kubeai-chat": "kubeai-chat-8000", "kubeai-threads": "kubeai-threads-1200"}
"""Short names."""

WORKLOADS = {
    **{
        f"kubeai-chat-{concurrency}": Known(
            f"KubeAI's published tables: 8,000 chat prompts, {concurrency:,} at a time",
            partial(_chat, concurrency),
            frozenset({"pace", "real_conversations"}),
        )
        for concurrency in kubeai_chat.REQUESTS_PER_SECOND
    },
    **{
        f"kubeai-threads-{concurrency}": Known(
            f"KubeAI's multi-turn benchmark: 8,000 threads, {concurrency:,} at a time",
            partial(_threads, concurrency),
        )
        for concurrency in kubeai_threads.CONCURRENCIES
    },
    "blog-2xL4": Known(
        "KubeAI's post: 80 users on two L4s, long questions, responses of 10 tokens",
        lambda asked: blog.blog_2xl4(asked.seed),
    ),
    "blog-8xH100": Known(
        "KubeAI's post: 320 users on eight H100s, the same threads",
        lambda asked: blog.blog_8xh100(asked.seed),
    ),
    **{
        f"lora-{adapters}": Known(_of_lora(adapters), partial(_lora, adapters))
        for adapters in lora.ADAPTERS
    },
    "saas": Known(
        "150 system prompts of 6,000 tokens with 5 questions each, at random times",
        lambda asked: saas.saas(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "codegen": Known(
        "coding agents: system prompts of 3,000 to 100,000 tokens, 2 to 20 turns",
        lambda asked: codegen.codegen(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    **{
        f"agents-{concurrency}": Known(
            f"coding agents: {concurrency} sessions of 20 to 60 turns, up to 150,000 tokens each",
            partial(_agents, concurrency),
            frozenset({"pace"}),
        )
        for concurrency in agents.CONCURRENCIES
    },
    "sub-agents": Known(
        "coding agents whose turns start 1 to 4 sub-agents with the same context",
        lambda asked: sub_agents.sub_agents(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    **{
        f"document-batch-{number}": Known(
            f"1,200 questions on {number} document{'s'[: number - 1]} of 60,000 tokens",
            partial(_document_batch, number),
        )
        for number in documents.NUMBERS
    },
    **{
        f"hot-fleet-{engines}": Known(
            f"a new prefix of 40,000 tokens on {engines} engines with cold caches",
            partial(_hot_fleet, engines),
            frozenset({"pace"}),
        )
        for engines in hot_fleet.REQUESTS
    },
    "hot-fleet-64-chat": Known(
        "conversations behind a new prefix of 40,000 tokens on 64 engines",
        lambda asked: hot_fleet.hot_fleet_chat(64, asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "deep-rag": Known(
        "8 to 20 retrieved chunks in varying order behind a short system prompt",
        lambda asked: deep_rag.deep_rag(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "tool-agents": Known(
        "agents that call tools in 5 to 15 short steps, in a little overload",
        lambda asked: tool_agents.tool_agents(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "chat-bursts": Known(
        "chats that arrive in bursts: a coefficient of variation of 3",
        lambda asked: bursts.chat_bursts(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "instants": Known(
        "ten requests at one instant behind one context, once a second",
        lambda asked: bursts.instants(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "one-prefix": Known(
        "adversary: one system prompt for all, different short questions",
        lambda asked: adversaries.one_prefix(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "all-distinct": Known(
        "adversary: prompts without common prefixes",
        lambda asked: adversaries.all_distinct(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "hot-prefix": Known(
        "adversary: half of all requests share a prefix, the others have 100 prefixes",
        lambda asked: adversaries.hot_prefix(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "heavy-tail": Known(
        "adversary: conversations with a few very long messages",
        lambda asked: adversaries.heavy_tail(asked.seed, asked.pace),
        frozenset({"pace"}),
    ),
    "mooncake": Known(
        "a recorded trace in Mooncake's format, at its own times",
        lambda asked: trace.mooncake(_file(asked), asked.pace * (asked.replicas or 8) / 8),
        frozenset({"trace", "pace"}),
    ),
    "access-log": Known(
        "your own traffic, from Envoy's access log or a file of requests",
        lambda asked: access_log.access_log(_file(asked), asked.pace, Assumptions(asked.agreement)),
        frozenset({"trace", "pace", "agreement"}),
    ),
}
"""Workloads by name."""
