"""A model of one vLLM engine: its batch, KV cache and LoRA slots, without a clock."""
