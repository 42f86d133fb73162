"""How fast an engine is and how much it holds.

The seconds of a step: a base, a share for every token of context in the batch, and for
each request admitted an overhead and its uncached prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """The constants of a model on a GPU, "fitted to KubeAI's published tables" where not said."""

    name: str
    """For reports."""

    step_base_seconds: float
    """Seconds of any step: reading the weights once. Fitted to KubeAI's published tables."""

    seconds_per_context_token: float
    """Seconds per token of context of each request in the batch: reading its keys and values.
    Fitted to KubeAI's published tables."""

    admission_seconds: float
    """Seconds per request admitted in a step. Fitted to KubeAI's published tables."""

    prefill_tokens_per_second: float
    """Uncached prompt tokens per second. Fitted to KubeAI's published tables."""

    kv_blocks: int = 58_000 // 16
    """Blocks of keys and values. Fitted to KubeAI's published tables: the running batch of its
    random rows fits 58,000 tokens; the published engine flags would allow up to 180,000."""

    block_size: int = 16
    """Tokens per block; vLLM's default on GPUs."""

    max_num_seqs: int = 256
    """Requests in the running batch at most; vLLM's default in the published runs."""

    max_num_batched_tokens: int = 16_384
    """Tokens computed in one step at most; a longer prompt is computed in chunks. The published
    runs' value."""

    max_loras: int = 0
    """Adapters in one batch at most, and so the slots for them on the GPU. 0: LoRA is off."""

    max_cpu_loras: int = 0
    """Adapters in host memory at most; those in slots are among them, as in vLLM, so it is as many
    as there are slots at least. 0: just as many, vLLM's default."""

    lora_load_seconds: float = 0.5
    """Seconds to read an adapter from disk into host memory. Assumed: some 100 MB at the pace of a
    network disk; nothing of it is in the published tables."""

    lora_activate_seconds: float = 0.01
    """Seconds to copy an adapter from host memory into a slot. Assumed: some 100 MB over PCIe."""

    def __post_init__(self) -> None:
        # As vLLM demands; without it some of a batch would have no token in a step.
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs})"
            )


L4_LLAMA_3_1_8B_FP8 = Profile(
    name="Llama 3.1 8B FP8 on an L4",
    step_base_seconds=0.041,
    seconds_per_context_token=0.5e-6,
    admission_seconds=0.010,
    prefill_tokens_per_second=4_300.0,
)
"""The replica of KubeAI's published tables: reproduces their inter-token latencies within 5 %."""
