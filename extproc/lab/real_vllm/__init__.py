"""Real vLLM engines on the CPU (`make e2e-vllm`)."""
