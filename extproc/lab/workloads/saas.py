"""One service with many customers: long system prompts with a few questions each."""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

SYSTEM_PROMPTS = 150
QUESTIONS = 5
"""Questions for each system prompt."""

SYSTEM_TOKENS = 6_000
QUESTION_TOKENS = 1_200
ANSWER_TOKENS = 1_000

REQUESTS_PER_SECOND = 0.5
"""Rate at `pace` 1.

Generation limits eight L4s here, more than prefill (4.8 requests a second without a hit, at 4,300
tokens a second each). A response takes 1,000 steps of some 55 ms. At this rate each replica has
four requests of up to 8,200 tokens at a time, half of its cache of 67,600; the rest holds system
prompts. At twice the rate running requests fill the cache, and the queues grow.
"""


def saas(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return the "shared system prompt" benchmark of vLLM's production stack and llm-d: 750
    requests.

    They arrive in random order at random times; every question is a separate session.
    """
    sessions = [
        Session((_turn(customer, question),))
        for customer in range(SYSTEM_PROMPTS)
        for question in range(QUESTIONS)
    ]
    Random(f"saas/{seed}").shuffle(sessions)
    return Workload(name="saas", sessions=sessions, requests_per_second=REQUESTS_PER_SECOND * pace)


def _turn(customer: int, question: int) -> Turn:
    system = Segment(f"system/{customer}", SYSTEM_TOKENS, "system")
    name = f"question/{customer}/{question}"
    answer = Segment(f"{name}/answer", ANSWER_TOKENS, "assistant")
    return Turn((system, Segment(name, QUESTION_TOKENS)), answer)
