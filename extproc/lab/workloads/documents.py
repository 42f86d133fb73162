"""A batch of questions on a few huge documents.

Batch jobs ask one long document hundreds of questions: they extract fields, classify, check
claims. vLLM's `benchmark_long_document_qa_throughput.py` measures this on one engine, with
documents of 20,000 tokens by default. All lengths here are assumptions.
"""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

NUMBERS = (1, 4)
"""Documents of a batch."""

QUESTIONS = 1_200
WORKERS = 128
"""Questions at a time: 16 for each of eight engines."""

INSTRUCTION_TOKENS = 300
DOCUMENT_TOKENS = 60_000
"""An H100 computes it in 2.5 s. Its cache holds seven such documents."""


def document_batch(documents: int, seed: int = 0) -> Workload:
    """Return 1,200 questions on so many documents in random order, 128 at a time.

    The fleet starts without any document in a cache. Sharing one engine's copy saves 2.5 s of
    computing for each other engine, but each response then decodes in a batch eight times as large.
    """
    rng = Random(f"document-batch/{documents}/{seed}")
    return Workload(
        name=f"document-batch-{documents}",
        sessions=[
            Session((_question(rng, number, rng.randrange(documents)),))
            for number in range(QUESTIONS)
        ],
        concurrency=WORKERS,
        profile="h100-llama-3.1-8b",
    )


def _question(rng: Random, number: int, document: int) -> Turn:
    prompt = (
        Segment("document/instruction", INSTRUCTION_TOKENS, "system"),
        Segment(f"document/{document}", DOCUMENT_TOKENS),
        Segment(f"document/question/{number}", log_normal(rng, 60, 0.6, least=8, most=500)),
    )
    answer = log_normal(rng, mean=150, sigma=0.7, least=8, most=600)
    return Turn(prompt, Segment(f"document/question/{number}/answer", answer, "assistant"))
